// node playground/snapshot.mjs FOLDER ARCHIVE SNAPSHOT: Python's memory with the package imported, compressed.
// A browser restores it in place of starting Python, which takes it five seconds.
import { readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { gzipSync } from "node:zlib";

const [folder, archive, target] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(`${folder}/pyodide/pyodide.mjs`);
const { add, answers } = await import(`${folder}/start.mjs`);
const python = await loadPyodide({ indexURL: `${folder}/pyodide/`, _makeSnapshot: true });
const most = python._module.HEAP8.length; // the memory that a new Python has: a browser restores no more
add(python, "layoutgemm", Uint8Array.from(readFileSync(archive)));
const cells = ["A = Layout((4, 8), (8, 1)) @ Layout((4, 4), (1, 8))\nprove(A, A)", "A.svg()"];
answers(python)(JSON.stringify(cells));
python.runPython("import gc; gc.collect()");
if (python._module.HEAP8.length > most) throw new Error(`the imports need more than ${most} bytes`);
writeFileSync(target, gzipSync(python.makeMemorySnapshot(), { level: 9 }));
