"""An npm registry on loopback that has one package: for agents' own package managers, which install from a registry."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Shelf:
    """Serves the tarball at ``path``, whose manifest is ``manifest``, until ``close``."""

    def __init__(self, path: Path, manifest: dict[str, object]) -> None:
        data = path.read_bytes()
        name, version = str(manifest["name"]), str(manifest["version"])
        shelf = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == f"/{name}":
                    self._answer(json.dumps(shelf.packument).encode(), "application/json")
                elif self.path == f"/{name}.tgz":
                    self._answer(data, "application/octet-stream")
                else:
                    self.send_error(404)

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
        dist = {"tarball": f"{self.url}/{name}.tgz", "integrity": f"sha512-{digest}"}
        self.packument = {
            "name": name,
            "dist-tags": {"latest": version},
            "versions": {version: {**manifest, "dist": dist}},
        }
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
