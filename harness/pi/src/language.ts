/** Which language plyfs speaks: as the settings say, else as the locale does. */
import type { Settings } from "./settings.ts";
import { en, type Words } from "./words/en.ts";
import { zhCN } from "./words/zh_cn.ts";

export type { Words };

export function languageFor(language: Settings["language"], env: NodeJS.ProcessEnv = process.env): "en" | "zh-CN" {
  if (language !== "auto") return language;
  const locale = env.LC_ALL || env.LC_MESSAGES || env.LANG || "";
  return /^zh([_-](CN|SG|Hans)|$|\.)/i.test(locale) ? "zh-CN" : "en";
}

export function wordsFor(language: Settings["language"], env: NodeJS.ProcessEnv = process.env): Words {
  return languageFor(language, env) === "zh-CN" ? zhCN : en;
}
