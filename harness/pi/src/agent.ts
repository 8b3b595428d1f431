/**
 * What an agent gives to an extension, as far as plyfs uses it, in the form that Pi and Oh My Pi share.
 *
 * Types alone, so that the extension imports neither agent; `types/` checks them against what both have published.
 */

export interface Message {
  role: string;
  content?: unknown;
  toolCallId?: string;
}

/** One entry of a session. It never changes. */
export interface Entry {
  type: string;
  id: string;
  parentId: string | null;
  customType?: string;
  data?: unknown;
  message?: Message;
}

export interface SessionManager {
  getCwd(): string;
  getSessionId(): string;
  getSessionFile(): string | undefined;
  getLeafId(): string | null;
  getEntry(id: string): unknown;
  getBranch(fromId?: string): unknown[];
  getEntries(): unknown[];
  getHeader(): unknown;
}

export type Level = "info" | "warning" | "error";

/** A thing that draws itself in the terminal. */
export interface Component {
  render(width: number): string[];
  handleInput(data: string): void;
  invalidate(): void;
}

export interface Terminal {
  requestRender(): void;
}

export interface Theme {
  fg(color: "accent" | "muted" | "dim" | "error" | "warning" | "success", text: string): string;
  bold(text: string): string;
}

export interface Ui {
  select(title: string, options: string[]): Promise<string | undefined>;
  confirm(title: string, message: string): Promise<boolean>;
  notify(message: string, level?: Level): void;
  setStatus(key: string, text: string | undefined): void;
  setEditorText(text: string): void;
  custom<T>(
    factory: (tui: Terminal, theme: Theme, keys: unknown, done: (result: T) => void) => Component,
    options?: { overlay?: boolean },
  ): Promise<T>;
}

export interface Context {
  ui: Ui;
  mode: string;
  hasUI: boolean;
  cwd: string;
  sessionManager: SessionManager;
  isIdle(): boolean;
}

export interface CommandContext extends Context {
  waitForIdle(): Promise<void>;
  navigateTree(targetId: string): Promise<{ cancelled: boolean }>;
}

export interface Completion {
  value: string;
  label: string;
  description?: string;
}

export interface Command {
  description?: string;
  getArgumentCompletions?: (prefix: string) => Completion[] | null;
  handler: (args: string, ctx: CommandContext) => Promise<void>;
}

/** What may come with an event; each event has some of it. */
export interface AgentEvent {
  type: string;
  reason?: string;
  messageEntryId?: string;
  toolResultEntryIds?: string[];
  messages?: Message[];
  willContinue?: boolean;
  preparation?: { targetId: string; oldLeafId: string | null };
  newLeafId?: string | null;
  text?: string;
  source?: string;
}

export type Handler = (event: AgentEvent, ctx: Context) => unknown;

/** The agent itself. */
export interface Agent {
  on(event: string, handler: Handler): unknown;
  registerCommand(name: string, command: Command): void;
  appendEntry(type: string, data?: unknown): void;
  /** The commands that can be called, by the names that they have now. */
  getCommands(): { name: string; description?: string }[];
}
