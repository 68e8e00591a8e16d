// Makes a component of a JavaScript or TypeScript plugin: node build.mjs TOOLS ENTRY WIT WORLD OUT
// TOOLS has the packages; the folder that this file lies in is for this build alone.
import { cp, mkdir, readFile, writeFile } from "node:fs/promises";
import { SourceMap, createRequire, isBuiltin } from "node:module";
import { basename, dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

// What a plugin of each world exports: an object of functions, or of the one class that has the methods.
const EXPORTS = {
  "reward-plugin": ["reward", ["score"]],
  "judge-plugin": ["reward", ["score"]],
  "code-reward-plugin": ["reward", ["score"]],
  "group-reward-plugin": ["groupReward", ["scoreGroup"]],
  "environment-plugin": ["environment", ["Episode"]],
  "code-environment-plugin": ["environment", ["Episode"]],
  "estimator-plugin": ["estimator", ["describe", "estimate"]],
  "interpreter-plugin": ["code", ["Session"]],
};

const here = dirname(fileURLToPath(import.meta.url));
const [tools, entry, wit, world, out] = process.argv.slice(2);
const require = createRequire(join(tools, "package.json"));
const { componentize } = require("componentize-qjs");
const { build, formatMessages } = require("esbuild");
try {
  const bundle = await bundled();
  const jsPath = join(here, "bundle.js");
  await writeFile(jsPath, bundle);
  const { component } = await componentize({
    witPath: await contract(),
    world: "js",
    jsSource: bundle,
    jsPath,
    sync: true,
  });
  await writeFile(out, component);
} catch (error) {
  process.stderr.write(`${error.message.trim().replace(/^.* module evaluation: /, "")}\n`);
  process.exitCode = 1;
}

// One module with everything that the plugin imports, and a table of where its lines come from.
async function bundled() {
  const [name, functions] = EXPORTS[world];
  const source = basename(entry);
  const missing = `${source} exports \`${name}\` without a function or class `;
  const checks = functions.map(
    (each) => `if (typeof plugin.${each} !== "function") throw new Error(${JSON.stringify(`${missing}\`${each}\``)});`,
  );
  const result = await build({
    stdin: {
      contents: [
        `import ${JSON.stringify(join(here, "prelude.js"))};`,
        `import { ${name} as plugin } from "./${source}";`,
        ...checks,
        `export { plugin as ${name} };`,
      ].join("\n"),
      resolveDir: dirname(resolve(entry)),
      sourcefile: "molt",
    },
    absWorkingDir: dirname(resolve(entry)),
    outfile: join(here, "bundle.js"),
    bundle: true,
    charset: "utf8",
    conditions: ["import", "module"],
    external: ["molt:*", "wasi:*"],
    format: "esm",
    logLevel: "silent",
    mainFields: ["module", "main"],
    platform: "neutral",
    sourcemap: "external",
    target: "es2023",
    write: false,
  }).catch(async (failure) => {
    if (!failure.errors) throw failure;
    // What esbuild advises is for other uses of it.
    const advised = failure.errors.map((error) => {
      const [, path] = error.text.match(/^Could not resolve "(.*)"/) ?? [];
      if (path === undefined || /^[./]/.test(path)) return error;
      const text = isBuiltin(path)
        ? "A plugin runs without Node.js, so that its modules are not there."
        : `\`npm install ${path}\` in the project puts it where the build looks.`;
      return { ...error, notes: [{ text }] };
    });
    const messages = await formatMessages(advised, { kind: "error", color: false });
    throw new Error(messages.join(""));
  });
  const text = (ending) => result.outputFiles.find((file) => file.path.endsWith(ending)).text;
  const payload = JSON.parse(text(".map"));
  const map = new SourceMap(payload);
  const bundle = text(".js");
  const lines = bundle.split("\n").map((_, line) => {
    const { originalSource, originalLine } = map.findEntry(line, 0);
    return originalSource === undefined ? [] : [payload.sources.indexOf(originalSource), originalLine + 1];
  });
  const sources = payload.sources.map((path) => relative(dirname(resolve(entry)), resolve(here, path)) || path);
  return bundle
    .replace("MOLT_SOURCES", () => JSON.stringify(sources))
    .replace("MOLT_LINES", () => JSON.stringify(lines));
}

// The contract, and the world with what the prelude imports.
async function contract() {
  const to = join(here, "wit");
  await cp(wit, to, { recursive: true });
  for (const package_ of ["cli", "io", "random"]) {
    await mkdir(join(to, "deps", package_), { recursive: true });
    await cp(join(here, `wasi-${package_}.wit`), join(to, "deps", package_, "package.wit"));
  }
  const js = await readFile(join(here, "world.wit"), "utf8");
  await writeFile(join(to, "js.wit"), js.replace("MOLT_WORLD", world));
  return to;
}
