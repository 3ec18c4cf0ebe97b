// Python in a worker: the page stays quick, and cells reach no document.
import { loadPyodide } from "./pyodide/pyodide.mjs";
import create from "./pyodide/pyodide.asm.mjs";
import { add, of } from "./start.mjs";

const began = performance.now();
const at = (name) => new URL(name, import.meta.url).href;
const indexURL = at("./pyodide/");
const built = await (await fetch(at("./built.json"), { cache: "no-cache" })).json(); // {snapshot, packages: {name: archive or null}}
const file = async (name) => (await fetch(at(name))).body;
const bytes = async (stream) => new Uint8Array(await new Response(stream).arrayBuffer());
const loaded = new Set();
const WARM_STEPS = 36; // four of each kind of cells

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
  const createPyodideModule = async (settings) => {
    const made = await create(settings);
    made.growMemory(memory.length); // a new Python has less than the imports need
    return made;
  };
  python = await loadPyodide({ indexURL, createPyodideModule, _loadSnapshot: memory });
} catch (error) {
  console.warn(`the snapshot could not be restored: ${error}`);
  from = "source";
  python = await loadPyodide({ indexURL });
  await load("layoutgemm");
}
const [answers, drawing, warm] = ["answers", "drawing", "warm"].map((name) => of(python, name));
let wanted = null, working = false, warmed = false, edited = false;
postMessage({ ready: performance.now() - began, from });

// The newest message is answered; what is left of the one before it is dropped.
addEventListener("message", ({ data }) => { wanted = data; if (!working) work(); });
const pause = () => new Promise((resolve) => setTimeout(resolve)); // lets messages arrive

async function work() {
  working = true;
  while (wanted) {
    const { turn, cells, pictures } = wanted;
    wanted = null;
    if (cells) {
      edited = warmed;
      await answer(turn, cells);
    }
    for (const number of pictures ?? []) {
      if (wanted) break;
      postMessage({ picture: number, svg: drawing(number) });
      await pause();
    }
    await pause();
  }
  working = false;
}

// Cells that need modules which are not loaded yet are answered again.
async function answer(turn, cells) {
  let found = JSON.parse(answers(cells));
  for (;;) {
    const name = found.needs.find((each) => each in built.packages && !loaded.has(each));
    if (name === undefined) break;
    postMessage({ turn, loading: name });
    try {
      await load(name);
      found = JSON.parse(answers(cells));
    } catch (error) {
      console.warn(`${name} could not be loaded: ${error}`);
    }
  }
  postMessage({ turn, cells: found.cells });
  if (!warmed) { warmed = true; warmUp(); }
}

// Until the first edit: code that has run often is fast.
async function warmUp() {
  for (let step = 0; step < WARM_STEPS; step++) {
    await pause();
    if (edited) return;
    if (!working) postMessage({ rehearsal: warm(step) });
  }
  postMessage({ warm: performance.now() - began });
}
