// What the build and the worker do alike with Pyodide.
const HOME = "/home/pyodide";

// Makes the modules of an archive importable: those of a package of which Python has a part lie in its folder.
export function add(python, name, archive) {
  if (name === "layoutgemm") python.unpackArchive(archive.buffer, "zip", { extractDir: HOME });
  else python.FS.writeFile(`${HOME}/${name}.zip`, archive);
  python.runPython(`
import importlib, sys
for path in ("${HOME}", "${HOME}/${name}.zip"):
    if path not in sys.path:
        sys.path.insert(0, path)
importlib.invalidate_caches()`);
}

// The function of session.py of that name.
export const of = (python, name) => python.runPython(`import session; session.${name}`);
