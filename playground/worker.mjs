// Python in a worker: the page stays quick, and cells reach no document.
import { loadPyodide } from "./pyodide/pyodide.mjs";
import { add, answers as answersOf } from "./start.mjs";

const began = performance.now();
const at = (name) => new URL(name, import.meta.url).href;
const indexURL = at("./pyodide/");
const built = await (await fetch(at("./built.json"), { cache: "no-cache" })).json(); // {snapshot, packages: {name: archive or null}}
const file = async (name) => (await fetch(at(name))).body;
const bytes = async (stream) => new Uint8Array(await new Response(stream).arrayBuffer());
const loaded = new Set();

// null: a wheel, which Pyodide loads.
async function load(name) {
  const archive = built.packages[name];
  loaded.add(name);
  if (archive === null) await python.loadPackage([name], { messageCallback: () => {} });
  else add(python, name, await bytes(await file(archive)));
}

// Python as it was after the imports; where this browser cannot restore it, Python from its beginning.
let python, from = "snapshot";
try {
  const memory = await bytes((await file(built.snapshot)).pipeThrough(new DecompressionStream("gzip")));
  python = await loadPyodide({ indexURL, _loadSnapshot: memory });
} catch (error) {
  console.warn(`the snapshot could not be restored: ${error}`);
  from = "source";
  python = await loadPyodide({ indexURL });
  await load("layoutgemm");
}
const answers = answersOf(python);
postMessage({ ready: performance.now() - began, from });

// Cells that need modules which are not loaded yet are answered again.
addEventListener("message", async ({ data }) => {
  let found = JSON.parse(answers(data.cells));
  for (;;) {
    const name = found.needs.find((each) => each in built.packages && !loaded.has(each));
    if (name === undefined) break;
    postMessage({ turn: data.turn, loading: name });
    try {
      await load(name);
      found = JSON.parse(answers(data.cells));
    } catch (error) {
      console.warn(`${name} could not be loaded: ${error}`);
    }
  }
  postMessage({ turn: data.turn, cells: found.cells });
});
