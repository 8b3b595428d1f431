/** The settings for agents: the table `[agents]` of plyfs' configuration, which the daemon or the command reads. */

export interface Settings {
  mount: "auto" | "ask" | "off";
  on_exit: "apply" | "keep" | "leave";
  reopen: "ask" | "keep" | "restore";
  confirm: "tree" | "always" | "never";
  undo: "both" | "files" | "chat";
  badge: boolean;
  language: "auto" | "en" | "zh-CN";
}

export const DEFAULTS: Settings = {
  mount: "auto",
  on_exit: "apply",
  reopen: "ask",
  confirm: "tree",
  undo: "both",
  badge: true,
  language: "auto",
};
