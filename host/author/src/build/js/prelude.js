// Comes before every JavaScript plugin: what QuickJS lacks, from the little that a plugin imports.
import stderr from "wasi:cli/stderr@0.2.12";
import random from "wasi:random/insecure@0.2.12";

{
  const shown = (value) => {
    if (typeof value === "string") return value;
    if (value instanceof Error) return `${value}\n${value.stack}`;
    try {
      return JSON.stringify(value) ?? String(value);
    } catch {
      return String(value);
    }
  };
  const print = (...values) => {
    const utf8 = unescape(encodeURIComponent(`${values.map(shown).join(" ").toWellFormed()}\n`));
    // A stream takes 4096 bytes at a time.
    for (let at = 0; at < utf8.length; at += 4096) {
      const bytes = Uint8Array.from(utf8.slice(at, at + 4096), (character) => character.charCodeAt(0));
      stderr.getStderr().blockingWriteAndFlush(bytes);
    }
  };
  globalThis.console = { debug: print, error: print, info: print, log: print, warn: print };

  // QuickJS draws its seed when the plugin is built; this comes from the seed of the rollout.
  Math.random = () => {
    const [high, ...low] = random.getInsecureRandomBytes(7);
    return low.reduce((sum, byte) => sum * 256 + byte, high & 31) / 2 ** 53;
  };

  // From lines of the bundle to lines of the source.
  const sources = MOLT_SOURCES;
  const lines = MOLT_LINES;
  Error.prepareStackTrace = (error, frames) =>
    frames
      .map((frame) => {
        const [source, line] = lines[frame.getLineNumber() - 1] ?? [];
        const place = source === undefined ? "" : ` (${sources[source]}:${line})`;
        return `    at ${frame.getFunctionName() || "<top>"}${place}\n`;
      })
      .join("");
}
