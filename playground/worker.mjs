// Python in a worker: the page stays quick, and cells reach no document.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const began = performance.now();
const python = await loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href });
const archive = await (await fetch(new URL("./layoutgemm.zip", import.meta.url))).arrayBuffer();
python.unpackArchive(archive, "zip", { extractDir: "/home/pyodide" });
const answers = python.runPython("import session; session.answers");
postMessage({ ready: performance.now() - began });
addEventListener("message", ({ data }) => postMessage({ turn: data.turn, answers: answers(data.cells) }));
