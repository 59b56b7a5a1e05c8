// Parses the Mermaid files of a directory with Mermaid's own parser.
//
//   node check.mjs DIRECTORY
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { JSDOM } from "jsdom";

const { window } = new JSDOM("");
globalThis.window = window;
globalThis.document = window.document;
const { default: mermaid } = await import("mermaid");

const directory = process.argv[2];
const files = readdirSync(directory).filter((name) => name.endsWith(".mmd"));
let refused = 0;
for (const file of files) {
  try {
    await mermaid.parse(readFileSync(join(directory, file), "utf8"));
  } catch (error) {
    refused++;
    console.error(`${file}: ${error.message}`);
  }
}
console.log(`mermaid: ${files.length} graphs, ${refused} refused`);
process.exit(files.length === 0 || refused > 0 ? 1 : 0);
