// node playground/snapshot.mjs FOLDER ARCHIVE SNAPSHOT: Python's memory with the package imported, compressed.
// A browser restores it in place of starting Python, which takes it five seconds.
import { readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { gzipSync } from "node:zlib";

const TURNS = 4;
const [folder, archive, target] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(`${folder}/pyodide/pyodide.mjs`);
const { add } = await import(`${folder}/start.mjs`);
const python = await loadPyodide({ indexURL: `${folder}/pyodide/`, _makeSnapshot: true });
add(python, "layoutgemm", Uint8Array.from(readFileSync(archive)));
python.runPython(`
import importlib, pkgutil, layoutgemm
for found in pkgutil.walk_packages(layoutgemm.__path__, "layoutgemm."):
    if not found.name.rpartition(".")[2].startswith("sympy_") and not found.name.startswith("layoutgemm.kernels"):
        importlib.import_module(found.name)`);
// Code that has run a few times has its fast form, which Python keeps in its memory.
python.runPython(`
import gc, session
for step in range(${TURNS} * len(session.WARM)):
    session.warm(step)
session.forget()
gc.collect()`);
writeFileSync(target, gzipSync(python.makeMemorySnapshot(), { level: 9 }));
