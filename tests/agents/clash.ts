/** Another extension that has /undo and /redo of its own. */
export default function clash(pi: any): void {
  for (const name of ["undo", "redo"]) {
    pi.registerCommand(name, {
      description: "Somebody else's",
      handler: async (_args: string, ctx: any) => {
        ctx.ui.notify(`somebody else's ${name}`, "info");
      },
    });
  }
}
