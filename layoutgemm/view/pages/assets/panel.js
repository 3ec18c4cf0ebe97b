// What the panel at the side tells, and the ways to point at something: a click, a key, a line of text.

const element = (tag, text, children = []) => {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
};
const list = (pairs) =>
  element("dl", null, pairs.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
const factText = (fact, e) => {
  const number = fact.of(e);
  return number < 0 ? "none" : fact.labels ? fact.labels[number] : String(number);
};

// What of another matrix goes with an element: "m = 9, k = 0 to 31"; what is one number comes first.
function linkText(other, at) {
  const value = fixed(at);
  if (at.matrix.twin(other) || !other.dims.some((dim) => dim in value)) return null;
  const said = other.dims.map((dim, d) => [dim, ...(value[dim] ?? [0, other.extent[d]])]);
  const words = ([dim, from, to]) => `${dim} = ${from}${to - from > 1 ? ` to ${to - 1}` : ""}`;
  return said.sort((a, b) => (a[0] in value ? 0 : 1) - (b[0] in value ? 0 : 1)).map(words).join(", ");
}

// Who holds an element and what is known of it, as [name, value].
function facts(matrix, e) {
  const pairs = [], holders = matrix.heldBy(e);
  for (const [who, value] of holders.slice(0, 8)) {
    pairs.push([data.holder.name, holderWords(who).replace(`${data.holder.name} `, "")]);
    pairs.push([data.holder.value, matrix.labels[value] ?? String(value)]);
  }
  if (holders.length > 8) pairs.push(["", `and ${holders.length - 8} more hold it`]);
  for (const fact of matrix.facts) pairs.push([fact.name, factText(fact, e)]);
  return pairs;
}

function tell() {
  const panel = document.getElementById("told"), at = shown(), parts = [];
  let summary = "";
  if (at) {
    const full = at.matrix.full(at.e), said_at = at.matrix.axes.map((dim, d) => `${dim} = ${full[d]}`);
    parts.push(element("h2", `${at.matrix.name} (${full.join(", ")})`));
    const pairs = [["coordinate", said_at.join(", ")], ...facts(at.matrix, at.e)];
    parts.push(list(pairs));
    const said = (all) => all.map(([name, value]) => `${name} ${value}`);
    summary = [`${at.matrix.name} ${full.join(", ")}`, ...said(pairs.slice(1))].join("; ");
    // of the same element on the other side of a copy, or after a swizzle, too
    for (const matrix of [at.matrix, ...matrices.filter((other) => at.matrix.twin(other))]) {
      const told = (matrix.memory?.facts ?? []).map((fact) => [fact.name, factText(fact, at.e)]);
      const more = matrix === at.matrix ? [] : facts(matrix, at.e);
      if (more.length) parts.push(element("h3", matrix.name), list(more));
      if (told.length) parts.push(element("h3", matrix.memory.name), list(told));
      if (more.length) summary = [summary, matrix.name, ...said(more)].join("; ");
      if (told.length) summary = [summary, ...said(told)].join("; ");
    }
    const others = matrices.filter((other) => other !== at.matrix);
    const links = others.map((other) => [other.name, linkText(other, at)]).filter(([, text]) => text);
    if (links.length) parts.push(element("h3", at.matrix.place === "middle" ? "made of" : "goes with"), list(links));
  } else if (state.holder === null) parts.push(...hints());
  if (state.holder !== null) {
    parts.push(element("h3", `held by ${holderWords(state.holder)}`));
    for (const matrix of matrices) {
      const held = matrix.holding?.get(state.holder);
      if (!held) continue;
      parts.push(element("p", `${matrix.name}: ${held.length} ${data.holder.value}s`));
      const each = held.slice(0, 128).map(([value, e]) => element("span", `${value}: ${matrix.coord(e).join(",")}`));
      if (held.length > 128) each.push(element("span", `and ${held.length - 128} more`));
      const box = element("div", null, each);
      box.className = "held";
      parts.push(box);
    }
  }
  panel.replaceChildren(...parts);
  document.getElementById("summary").textContent = summary;
}

function hints() {
  const who = data.holder ? data.holder.name : null;
  const lines = ["Point at an element: what belongs to it stays bright in every picture."];
  if (who) lines.push(`Click, or press Enter, to select the ${who} that holds it: dots or bars mark all that it holds.`);
  const keys = element("p", null);
  keys.append(element("kbd", "Tab"), " goes to a picture, ");
  keys.append(...["\u2190", "\u2191", "\u2192", "\u2193"].map((arrow) => element("kbd", arrow)));
  keys.append(" from element to element, ", element("kbd", "Esc"), " back.");
  return [...lines.map((line) => element("p", line)), keys];
}

// Selects who holds the element; again, the next one that holds it; after the last, nobody.
function choose(at) {
  const same = state.cursor?.matrix === at.matrix && state.cursor.e === at.e && state.holder !== null;
  const holders = at.matrix.heldBy(at.e);
  state.turn = same ? state.turn + 1 : 0;
  state.cursor = at;
  state.hover = null;
  state.holder = holders[state.turn]?.[0] ?? null;
  if (state.holder === null) state.turn = -1;
  update();
}

function clear() {
  Object.assign(state, { cursor: null, hover: null, holder: null, turn: 0 });
  complain("");
  update();
}

const complain = (text) => { document.getElementById("complaint").textContent = text; };

// "C 17 11", "C(17, 11)", "17, 11" of the matrix in hand; "thread 37", "t37"; "t37 v5" or "A t37 v5"; "A byte 144",
// of a layout "offset 3".
function jump(text) {
  const words = text.trim().toLowerCase().match(/[a-z]+|-?\d+/g) ?? [];
  if (!words.length) return clear();
  const named = matrices.find((matrix) => matrix.name.toLowerCase() === words[0]);
  if (named) words.shift();
  const here = named ?? state.cursor?.matrix ?? matrices[matrices.length - 1];
  const numbers = words.filter((word) => /\d/.test(word)).map(Number);
  const letters = words.filter((word) => !/\d/.test(word)).map((word) => word[0]);
  const form = `${letters.join("")}${numbers.length}`;
  complain("");
  if (form === "b1" || form === "o1") return jumpToByte(named ?? matrices.find((m) => m.memory), numbers[0]);
  if (data.holder && [`${data.holder.name[0]}1`, `${data.holder.name[0]}${data.holder.value[0]}2`].includes(form)) {
    const { name, count } = data.holder, [who, value] = numbers;
    if (who < 0 || who >= count) return complain(`There are ${name}s 0 to ${count - 1}.`);
    const matrix = here.holding ? here : matrices.findLast((m) => m.holding);
    const found = matrix?.holding.get(who)?.filter(([v]) => value === undefined || v === value);
    if (value !== undefined && !found?.length)
      return complain(`${matrix.name} has no ${data.holder.value} ${value} in ${name} ${who}.`);
    return go({ holder: who, cursor: value === undefined ? null : { matrix, e: found[0][1] } });
  }
  const { extents, axes } = here;
  if (form !== String(axes.length)) return complain(`Not understood: write ${placeholder()}.`);
  if (numbers.some((at, d) => at < 0 || at >= extents[d]))
    return complain(`${here.name} has ${axes.map((dim, d) => `${dim} 0 to ${extents[d] - 1}`).join(", ")}.`);
  go({ cursor: { matrix: here, e: here.elementAt(numbers) } });
}

function jumpToByte(matrix, byte) {
  if (!matrix?.memory) return complain("That matrix has no picture of its memory.");
  const { grain, banked } = matrix.memory;
  const picture = pictures.find((p) => p instanceof MemoryPicture && p.matrix === matrix);
  const e = picture.owner[banked ? Math.floor((byte * 8) / grain) : byte] ?? -1;
  if (e < 0) return complain(`No element of ${matrix.name} is at ${byte}.`);
  go({ cursor: { matrix, e } });
}

function go(where) {
  Object.assign(state, { hover: null, turn: 0 }, where);
  update();
  if (state.cursor) pictures.find((picture) => picture.matrix === state.cursor.matrix).reveal();
}

function placeholder() {
  const last = matrices[matrices.length - 1];
  const forms = [[last.name, 1, 2, ...last.axes.slice(2).map(() => 0)].join(" ")];
  if (data.holder) forms.push(`${data.holder.name} 5`, `${data.holder.name[0]}5 ${data.holder.value[0]}2`);
  const stored = matrices.find((matrix) => matrix.memory);
  if (stored) forms.push(stored.memory.banked ? `${stored.name} byte 144` : "offset 3");
  return forms.join(", ");
}
