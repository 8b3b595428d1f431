/** How many columns text takes in a terminal, near enough: East Asian wide characters take two, marks none. */

function widthOf(code: number): number {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return 0;
  if (code >= 0x300 && code < 0x370) return 0;
  const wide =
    (code >= 0x1100 && code < 0x1160) ||
    (code >= 0x2e80 && code < 0xa4d0) ||
    (code >= 0xac00 && code < 0xd7a4) ||
    (code >= 0xf900 && code < 0xfb00) ||
    (code >= 0xfe30 && code < 0xfe70) ||
    (code >= 0xff00 && code < 0xff61) ||
    (code >= 0xffe0 && code < 0xffe7) ||
    (code >= 0x1f300 && code < 0x1fb00) ||
    (code >= 0x20000 && code < 0x3fffe);
  return wide ? 2 : 1;
}

export function columns(text: string): number {
  let sum = 0;
  for (const char of text) sum += widthOf(char.codePointAt(0) as number);
  return sum;
}

/** `text` in at most `width` columns. */
export function clipped(text: string, width: number): string {
  if (columns(text) <= width) return text;
  let sum = 0;
  let kept = "";
  for (const char of text) {
    sum += widthOf(char.codePointAt(0) as number);
    if (sum > width - 1) break;
    kept += char;
  }
  return `${kept}…`;
}

/** A file's name as it can be shown: one that could command the terminal is escaped. */
export function shown(name: string): string {
  const odd = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]/u;
  return odd.test(name) ? JSON.stringify(name) : name;
}
