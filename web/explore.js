"use strict";

// The page around the module: it shows controls, asks what they say (src/lab/predict/explorer.h),
// and shows the answer; so it does with traces (src/lab/explain/explain_report.h). All numbers,
// texts and plots are the module's.

const element = (id) => document.getElementById(id);
const cards = JSON.parse(element("cards").textContent);
const scenes = JSON.parse(element("scenes").textContent);

// The page starts from four ranks, or from as many devices as its first machine has.
const firstCard = cards[element("first-card").textContent];
const firstRanks = firstCard.network ? 4 : Math.min(4, firstCard.node.devices);

// The controls by group; all but the first are folded. A number has a slider from `min` to `max`
// with even factors; the field beside it takes anything. What the trainers call an option has the
// same name here.
const groups = {
  "The main controls": {
    dim: {label: "width", value: "8192", min: 64, max: 32768},
    "batch-size": {label: "batch", value: "64", min: 1, max: 65536},
    ranks: {label: "ranks or devices", value: String(firstRanks), min: 1, max: 64},
    card: {label: "machine", value: element("first-card").textContent, choices: Object.keys(cards)},
  },
  "More of the model": {
    depth: {label: "depth (layers)", value: "6", min: 1, max: 48},
    layers: {label: "widths W0,W1,… instead", value: ""},
    block: {label: "kind of block", value: "mlp", choices: ["mlp", "transformer"]},
    heads: {label: "heads of attention", value: ""},
    length: {label: "length of a sequence", value: ""},
    ffn: {label: "width inside a block", value: ""},
    causal: {label: "causal attention", value: "", flag: true},
    activation: {
      label: "activation",
      value: "relu",
      choices: ["relu", "gelu", "gelu-tanh", "silu", "tanh", "sigmoid", "leaky-relu", "none"],
    },
    precision: {label: "precision", value: "fp32", choices: ["fp32", "tf32", "bf16", "fp16"]},
    optimizer: {
      label: "optimizer",
      value: "adam",
      choices: ["adam", "adamw", "sgd", "rmsprop", "adagrad", "lion"],
    },
    update: {
      label: "update",
      value: "auto",
      choices: ["auto", "separate", "fused", "per-bucket"],
    },
    recompute: {label: "recomputed segments", value: "1", min: 1, max: 16},
    accumulate: {label: "micro-steps of a step", value: "1", min: 1, max: 16},
  },
  "More of the ranks": {
    scheme: {
      label: "scheme",
      value: "ddp",
      choices: ["ddp", "zero1", "zero2", "zero3", "factor", "server", "data-parallel"],
    },
    "batch-per-rank": {label: "batch is each rank's", value: "", flag: true},
    tensor: {label: "tensor ranks", value: "1", min: 1, max: 8},
    pipeline: {label: "pipeline stages", value: "1", min: 1, max: 8},
    schedule: {
      label: "pipeline schedule",
      value: "1f1b",
      choices: ["1f1b", "gpipe", "naive", "zb-h1"],
    },
    "micro-batches": {label: "micro-batches", value: ""},
    "bucket-mib": {label: "bucket, MiB", value: ""},
    "no-overlap": {label: "no overlap with backward", value: "", flag: true},
    "delay-ms": {label: "delay before backward, ms", value: "0"},
    "slow-rank": {label: "slow rank, R:MS", value: ""},
  },
  "More of the machine": {
    memory: {label: "memory of a device", value: ""},
    "device.flops_per_s": {label: "flop/s", value: "", rate: true},
    "device.memory_bytes_per_s": {label: "memory, B/s", value: "", rate: true},
    "device.launch_s": {label: "launch, s", value: "", rate: true},
    "device.host_s": {label: "host, s", value: "", rate: true},
    "node.latency_s": {label: "latency in a node, s", value: "", rate: true},
    "network.latency_s": {label: "latency of the network, s", value: "", rate: true},
    links: {label: "links, times as fast", value: "1", min: 0.125, max: 8},
  },
};
const controls = Object.assign({}, ...Object.values(groups));
const maxRanks = 1024;
const notOptions = new Set(["ranks", "card", "memory", "links"]);

// Models that people know; of a transformer, its blocks, without embeddings and heads.
const blocks = (dim, depth, heads, length, more) => ({
  block: "transformer",
  dim: String(dim),
  depth: String(depth),
  heads: String(heads),
  length: String(length),
  ffn: String(4 * dim),
  ...more,
});
const knownModels = {
  "MLP 8192 x 6 (the course's)": {dim: "8192", depth: "6"},
  "MLP 1024 x 6": {dim: "1024", depth: "6"},
  "BERT base, 12 blocks of 768": blocks(768, 12, 12, 512),
  "BERT large, 24 blocks of 1024": blocks(1024, 24, 16, 512),
  "GPT-2, 12 blocks of 768": blocks(768, 12, 12, 1024, {causal: "true"}),
  "GPT-2 XL, 48 blocks of 1600": blocks(1600, 48, 25, 1024, {causal: "true"}),
  "ViT-B/16, 12 blocks of 768": blocks(768, 12, 12, 197),
  "ViT-L/16, 24 blocks of 1024": blocks(1024, 24, 16, 197),
};
const modelControls = ["dim", "depth", "layers", "block", "heads", "length", "ffn", "causal"];

let state = {};
let pinned;  // a state to compare with; none at first
let module, instance;
const guesses = {
  points: 0,
  of: 0
};

// The module.

/** The pieces of a trace that is read, the next one last; null is where gzip ends it. */
let pieces = [];

/** Fills this memory with the next bytes of the trace. Returns how many, -1 if it is corrupt. */
function readTrace(memory) {
  const piece = pieces.pop();
  if (!piece) return piece === null ? -1 : 0;
  const part = piece.subarray(0, memory.length);
  memory.set(part);
  if (part.length < piece.length) pieces.push(piece.subarray(part.length));
  return part.length;
}

/** A module of its own, asked by ask(name, text), which throws what it refuses. */
function newInstance() {
  let memory;
  const bytes = (at, count) => new Uint8Array(memory.buffer, at, count);
  const decoded = (at, count) => new TextDecoder().decode(bytes(at, count));
  const imports = {
    page: {
      refuse(text, count) { throw new Error(decoded(text, count)); },
      read_trace: (out, count) => readTrace(bytes(out, count)),
    },
  };
  // The C library imports files and clocks, which this code does not use: "not supported".
  for (const {module: from, name, kind} of WebAssembly.Module.imports(module)) {
    imports[from] ??= {};
    imports[from][name] ??= kind === "tag" ? new WebAssembly.Tag({parameters: ["i32"]}) : () => 52;
  }
  const {exports} = new WebAssembly.Instance(module, imports);
  memory = exports.memory;
  exports._initialize();
  return (name, question) => {
    const text = new TextEncoder().encode(question);
    const room = exports.question_of(text.length);
    bytes(room, text.length).set(text);
    const count = exports[name]();
    return decoded(exports.answer_text(), count);
  };
}

/** What is refused, or too large for a module. */
function lineOf(error, command) {
  const failed = error instanceof WebAssembly.RuntimeError || error instanceof RangeError;
  return failed ? `This is too large for the page; run it by mlp_lab ${command}.` : error.message;
}

/** The answer, or {error} with the product's line. After an error the next instance is new. */
function ask(question) {
  try {
    instance ??= newInstance();
    return JSON.parse(instance("answer_question", JSON.stringify(question)));
  } catch (error) {
    instance = undefined;
    return {error: lineOf(error, "predict")};
  }
}

async function load() {
  const bytes = Uint8Array.from(atob(element("module").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  module = new WebAssembly.Module(await new Response(stream).arrayBuffer());
}

// The question.

/** Why the module cannot be asked, in the words of the controls; nothing if it can. */
function refusalOf(state) {
  const refuse = (name, why) => ({name, error: `${controls[name].label} '${state[name]}': ${why}`});
  if (!Object.hasOwn(cards, state.card)) {
    return refuse(
        "card", `this page has no such card; choose one of ${Object.keys(cards).join(", ")}`);
  }
  const isWhole = /^\d+$/.test(state.ranks);
  if (!isWhole || Number(state.ranks) < 1 || Number(state.ranks) > maxRanks) {
    return refuse("ranks", `not a whole number from 1 to ${maxRanks}`);
  }
  for (const [name, {rate}] of Object.entries(controls)) {
    if ((!rate && name !== "links") || (rate && state[name] === "")) continue;
    const [least, most] = !rate ? [0.001, 1000] : name.endsWith("_per_s") ? [1, 1e21] : [0, 1000];
    const value = state[name] === "" ? NaN : Number(state[name]);
    if (value >= least && value <= most) continue;
    return refuse(name, `not a number from ${least} to ${most}`);
  }
  return undefined;
}

/** The module's refusal with the control that it is about: "--dim 'x': ..." is about the width. */
function refused(error) {
  const option = error.match(/^--(\S+) /)?.[1].replace("global-batch-size", "batch-size");
  if (option === undefined || !Object.hasOwn(controls, option)) return {error};
  return {name: option, error: `${controls[option].label}: ${error}`};
}

/** What the state changes of its card, in the words of the controls. */
const cardChanges = (state) =>
    Object.entries(controls)
        .filter(
            ([name, {rate, value}]) =>
                (rate || name === "memory" || name === "links") && state[name] !== value)
        .map(([name, {label}]) => `${label} ${state[name]}`);

/** The state's card: its rates replaced, and all times of messages divided by `links`. */
function cardOf(state) {
  const card = structuredClone(cards[state.card]);
  const changes = cardChanges(state);
  if (changes.length > 0) card.name += ` (changed: ${changes.join(", ")})`;
  for (const name of Object.keys(controls)) {
    const [part, rate] = name.split(".");
    if (!controls[name].rate || state[name] === "" || !card[part]) continue;
    card[part][rate] = {value: Number(state[name]), source: "set on the page"};
  }
  const faster = Number(state.links);
  if (faster === 1) return card;
  for (const links of [card.node, card.network]) {
    for (const tables of Object.values(links ?? {})) {
      for (const table of [tables].flat()) {
        if (table?.points) table.points = table.points.map(([size, s]) => [size, s / faster]);
      }
    }
  }
  return card;
}

/** Whether `mlp_lab predict` knows the state's card by its name. */
const isNamedCard = (state) =>
    cardChanges(state).length === 0 && state.card !== "given" && state.card !== "study";

function questionOf(state) {
  const options = {};
  for (const [name, value] of Object.entries(state)) {
    if (notOptions.has(name) || controls[name].rate || value === controls[name].value) continue;
    options[name] = value;
  }
  const question = {
    card: cardOf(state),
    machine: isNamedCard(state) ? state.card : "card.json",
    ranks: Number(state.ranks),
    options,
  };
  if (state.memory !== "") question.memory = state.memory;
  return question;
}

// The answer.

function fillTable(id, caption, columns, rows) { fill(element(id), caption, columns, rows); }

function fill(table, caption, columns, rows) {
  table.replaceChildren();
  table.hidden = rows.length === 0;
  table.createCaption().textContent = caption;
  const head = table.createTHead().insertRow();
  for (const column of columns) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = column;
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const cell of row) line.insertCell().textContent = cell;
  }
}

function showText(id, text) {
  element(id).textContent = text;
  element(id).hidden = text === "";
}

function showError({name, error} = {}) {
  showText("error", error ?? "");
  for (const each of element("controls").querySelectorAll("[aria-invalid]")) {
    each.removeAttribute("aria-invalid");
  }
  if (name === undefined) return;
  const field = element(name);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", "error");
  const group = field.closest("details");
  if (group) group.open = true;
}

/** Shows the answer, or hides it until a guess is made. */
function show(answer) {
  const failed = answer.error === undefined ? undefined :
      answer.name                           ? answer :
                                              refused(answer.error);
  showError(failed);
  const hides = element("guess-first").checked && !failed && !answer.guess;
  element("verdict").setAttribute("aria-busy", "false");
  element("status").textContent =
      hides ? "The answer is hidden until you have guessed." : (answer.headline ?? "");
  showText("headline", hides ? "" : (answer.headline ?? ""));
  element("guess").hidden = !hides;
  element("answer").hidden = hides || failed !== undefined;
  showText("guessed", "");
  showText("compared", hides ? "" : (answer.comparison?.text ?? ""));
  if (failed) return;
  showText("setting", answer.setting);
  element("timeline").innerHTML = answer.timeline_svg;
  element("account-plot").innerHTML = answer.account_svg;
  element("speed-up-plot").innerHTML = answer.speed_up_svg;
  element("memory-plot").innerHTML = answer.memory_svg;
  fillTable(
      "account", "The account of the step", ["part", "time", "share"],
      answer.account.map((row) => [row.part, row.time, row.share]));
  fillTable(
      "speed-ups", "Speed-up", ["ranks", "step", "samples/s", "speed-up"],
      answer.speed_ups.map((row) => [row.ranks, row.time, row.rate, row.factor]));
  fillTable(
      "memory-table", "Memory by the plan", ["device", "category", "size"],
      answer.memory.flatMap(
          (device) => device.categories.map((row) => [device.device, row.category, row.size])));
  fillTable(
      "messages", "Messages of a step", ["axis", "exchange", "ranks", "messages", "payload"],
      answer.messages.map((row) => [row.axis, row.exchange, row.ranks, row.count, row.size]));
  element("command").textContent = answer.command;
  element("predict").textContent = answer.predict;
  element("explain").textContent = answer.explain;
  element("machine").textContent = isNamedCard(state) ?
      `${cards[state.card].name}, the card ${state.card}` :
      `${cardOf(state).name}; save its card first, as card.json`;
  showComparison(answer.comparison);
  showSaveButtons();
}

function showSaveButtons() {
  for (const save of document.querySelectorAll(".save")) {
    save.hidden = save.previousElementSibling.querySelector("svg") === null;
  }
}

function showComparison(comparison) {
  element("comparison").hidden = !comparison;
  if (!comparison) return;
  const text = (value, {flag}) => value === "" ? (flag ? "no" : "as usual") : value;
  const changes = Object.entries(controls)
                      .filter(([name]) => state[name] !== pinned[name])
                      .map(
                          ([name, control]) => `${control.label} ${text(pinned[name], control)} → ${
                              text(state[name], control)}`);
  element("changes").textContent = changes.join("; ") || "Nothing has changed since it was pinned.";
  fillTable(
      "compared-parts", "By part", ["", "pinned", "now", "change"],
      comparison.rows.map((row) => [row.what, row.pinned, row.now, row.change]));
  element("comparison-plot").innerHTML = comparison.svg;
}

/**
 * The study's cases: a button asks the page for the same step, if it has controls for all of it.
 */
function showMeasurements() {
  const {rows, checklist} = JSON.parse(element("measured").textContent);
  fillTable(
      "measurements", "Measured by the study, and simulated for its machine",
      ["case", "measured", "simulated", "difference"],
      rows.map((row) => [row.name, row.measured, row.simulated, row.difference]));
  showText("checklist", checklist);
  rows.forEach((row, i) => {
    if (!Object.keys(row.state).every((name) => Object.hasOwn(controls, name))) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = row.name;
    button.addEventListener("click", () => {
      chooseScene("");
      Object.assign(state, row.state);
      update(true);
    });
    element("measurements").tBodies[0].rows[i].cells[0].replaceChildren(button);
  });
}

/** Asks and shows; `isNew` settings get an entry of their own in the browser's history. */
function update(isNew = false) {
  for (const [name, value] of Object.entries(state)) fillControl(name, value);
  fillOthers();
  keepAddress(isNew);
  show(answerNow());
  document.body.dataset.shown = "";
}

function answerNow(more = {}) {
  const refusal = refusalOf(state);
  if (refusal) return refusal;
  const question = {...questionOf(state), ...more};
  if (pinned && !refusalOf(pinned)) question.pinned = questionOf(pinned);
  return ask(question);
}

// Traces.

/** The pieces of a file, unpacked. */
async function piecesOf(file) {
  const all = [];
  let isPacked = false;
  try {
    const [first, second] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
    isPacked = first === 0x1f && second === 0x8b;
    const stream = file.stream();
    const reader =
        (isPacked ? stream.pipeThrough(new DecompressionStream("gzip")) : stream).getReader();
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      if (next.value.length > 0) all.push(next.value);
    }
  } catch (error) {
    if (error instanceof RangeError) throw error;
    if (!isPacked) throw new Error(`trace '${file.name}': cannot be read; ${error.message}`);
    all.push(null);
  }
  return all;
}

function showReport({sentences, tables, plots, text}) {
  element("trace-sentences").replaceChildren(...sentences.map((sentence) => {
    const item = document.createElement("li");
    item.textContent = sentence;
    return item;
  }));
  element("trace-plot").innerHTML = plots.join("");
  element("trace-tables").replaceChildren(...tables.map(({title, columns, rows}) => {
    const box = document.createElement("div");
    box.className = "scroll";
    const table = document.createElement("table");
    fill(table, title, columns, rows);
    box.append(table);
    return box;
  }));
  element("trace-text").textContent = text;
  showSaveButtons();
}

/** Shows the account of a run from its traces. The page stands still while it reads one. */
async function explainTraces(files) {
  element("trace-report").hidden = true;
  showText("trace-error", "");
  const status = async (text) => {
    showText("trace-status", text);
    await new Promise((done) => setTimeout(done, 50));  // it is seen
  };
  try {
    const tell = newInstance();  // its memory goes with it
    for (const [i, file] of files.entries()) {
      await status(`Reading ${file.name}, ${i + 1} of ${files.length}.`);
      pieces = (await piecesOf(file)).reverse();
      tell("add_trace", file.name);
    }
    await status("Finding where the time went.");
    showReport(JSON.parse(tell("explain_traces", element("cards").textContent)));
    element("trace-report").hidden = false;
  } catch (error) {
    showText("trace-error", lineOf(error, "explain"));
  }
  pieces = [];
  showText("trace-status", "");
}

let explaining;  // what was asked last: one run after another

function takeTraces(files) {
  const all = [...files];
  if (all.length > 0) explaining = explaining.then(() => explainTraces(all));
}

// The state and the address.

const defaults = () =>
    Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value]));

const partsOf = (state) => new URLSearchParams(
    Object.entries(state).filter(([name, value]) => value !== controls[name].value));

let places = 0;  // entries of the history to which "Undo" may go back

function keepAddress(isNew) {
  const parts = partsOf(state);
  if (element("scene").value !== "") parts.set("scene", element("scene").value);
  if (element("guess-first").checked) parts.set("guess", "1");
  if (pinned) parts.set("pin", partsOf(pinned));
  const adds = isNew && `#${parts}` !== location.hash && document.body.dataset.shown !== undefined;
  try {
    if (adds) {
      history.pushState({places: places + 1}, "", `#${parts}`);
      ++places;
    } else {
      history.replaceState({places}, "", `#${parts}`);
    }
  } catch {
    // A page within another one may have no address of its own.
  }
  element("undo").disabled = places === 0;
}

function take(state, parts) {
  for (const [name, value] of parts) {
    if (Object.hasOwn(controls, name)) state[name] = value.slice(0, 200);
  }
  return state;
}

/** Takes what it knows of the address; values are checked by the module, as any others. */
function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  chooseScene(parts.get("scene") ?? "");
  take(state, parts);
  pinned = parts.has("pin") ? take(defaults(), new URLSearchParams(parts.get("pin"))) : undefined;
  element("guess-first").checked = parts.get("guess") === "1";
  places = history.state?.places ?? 0;
}

function chooseScene(number) {
  const scene = scenes[number];
  element("scene").value = scene === undefined ? "" : number;
  showText("scene-question", scene?.question ?? "");
  state = {...defaults(), ...scene?.state};
}

/** The state's model as if nobody had changed it, or as this one. */
function chooseModel(name) {
  for (const each of modelControls) state[each] = knownModels[name]?.[each] ?? controls[each].value;
  update(true);
}

// The controls.

/**
 * The values at which a slider stops, each other than the one before, so that every press of an
 * arrow key changes it. Sizes are mostly powers of two: there it stops, and half-way.
 */
function stopsOf({min, max}) {
  const stops = [];
  if (!Number.isInteger(min)) {
    for (let value = min; value <= max; value *= 2 ** 0.25)
      stops.push(Number(value.toPrecision(3)));
    return stops;
  }
  for (let value = min; value <= max;
       value += value < 8 ? 1 : 2 ** Math.floor(Math.log2(value)) / 2) {
    stops.push(value);
  }
  return stops;
}
for (const control of Object.values(controls)) {
  if (control.min !== undefined) control.stops = stopsOf(control);
}

const nearest = (stops, value) => stops.reduce(
    (best, stop, i) =>
        Math.abs(Math.log(stop / value)) < Math.abs(Math.log(stops[best] / value)) ? i : best,
    0);

function fillControl(name, value) {
  const {stops, flag} = controls[name];
  const field = element(name);
  if (flag) {
    field.checked = value === "true";
  } else if (field.value !== value) {
    field.value = value;
  }
  if (stops === undefined) return;
  const slider = element(`${name} slider`);
  slider.value = Number(value) > 0 ? nearest(stops, Number(value)) : 0;
  slider.setAttribute("aria-valuetext", value);
}

/** The known model that is chosen, and what folded groups hold. */
function fillOthers() {
  const isChosen = ([, model]) =>
      modelControls.every((name) => state[name] === (model[name] ?? controls[name].value));
  element("known-model").value = Object.entries(knownModels).find(isChosen)?.[0] ?? "";
  for (const group of document.querySelectorAll("details.group")) {
    const title = group.dataset.title;
    const changed =
        Object.entries(groups[title]).filter(([name, {value}]) => state[name] !== value);
    group.querySelector("summary").textContent = [
      title, ...changed.map(([name, {label, flag}]) => flag ? label : `${label} ${state[name]}`)
    ].join(": ");
  }
  element("pin").textContent = pinned ? "Unpin" : "Pin this setting";
}

let moved = {name: "", at: 0};

/** Changes that follow each other at once, as of a slider that is drawn, are one for "Undo". */
function change(name, value) {
  state[name] = value;
  const now = performance.now();
  const goesOn = moved.name === name && now - moved.at < 700;
  moved = {name, at: now};
  update(!goesOn);
}

function fieldOf(name, control) {
  const row = document.createElement("div");
  row.className = "field";
  const label = document.createElement("label");
  label.htmlFor = name;
  label.textContent = control.label;
  const field = document.createElement(control.choices ? "select" : "input");
  field.id = name;
  for (const choice of control.choices ?? []) field.append(new Option(choice));
  if (control.flag) field.type = "checkbox";
  if (control.rate) field.placeholder = "the card's";
  field.addEventListener(
      "change",
      () => change(name, control.flag ? (field.checked ? "true" : "") : field.value.trim()));
  row.append(label, field);
  if (control.min === undefined) return row;
  const slider = document.createElement("input");
  slider.type = "range";
  slider.id = `${name} slider`;
  slider.max = control.stops.length - 1;
  slider.setAttribute("aria-label", `${control.label}, slider`);
  slider.addEventListener("input", () => change(name, String(control.stops[slider.value])));
  row.append(slider);
  return row;
}

/** Browsers have a clipboard for pages only that came from this machine or by https. */
async function copyCommand(id = "command") {
  const command = element(id);
  try {
    await navigator.clipboard.writeText(command.textContent);
    element("copied").textContent = "copied";
  } catch {
    getSelection().selectAllChildren(command);
    element("copied").textContent = "selected; press Ctrl+C, or Cmd+C, to copy it";
  }
}

// Files.

function saveFile(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A plot as a file of its own: as text, or drawn twice as large as its text says. */
function plotText(plot) {
  const svg = plot.querySelector("svg").cloneNode(true);
  svg.setAttribute("width", svg.viewBox.baseVal.width);
  svg.setAttribute("height", svg.viewBox.baseVal.height);
  return new XMLSerializer().serializeToString(svg);
}

async function plotImage(plot) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(plotText(plot))}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * picture.width;
  canvas.height = 2 * picture.height;
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function addSaveButtons(plot) {
  const buttons = document.createElement("p");
  buttons.className = "save";
  const add = (kind, content) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `Save as ${kind}`;
    button.setAttribute("aria-label", `Save ${plot.id} as ${kind}`);
    button.addEventListener(
        "click", async () => saveFile(`${plot.id}.${kind.toLowerCase()}`, await content()));
    buttons.append(button, " ");
  };
  add("SVG", () => new Blob([plotText(plot)], {type: "image/svg+xml"}));
  add("PNG", () => plotImage(plot));
  plot.after(buttons);
}

function foldedGroup(title) {
  const group = document.createElement("details");
  group.className = "group";
  group.dataset.title = title;
  group.append(document.createElement("summary"));
  return group;
}

function openGroup(title) {
  const group = document.createElement("fieldset");
  group.append(document.createElement("legend"));
  group.firstChild.textContent = title;
  return group;
}

function makeControls() {
  scenes.forEach((scene, i) => element("scene").append(new Option(scene.title, String(i))));
  for (const name of Object.keys(knownModels)) element("known-model").append(new Option(name));
  for (const [i, [title, members]] of Object.entries(groups).entries()) {
    const group = i === 0 ? openGroup(title) : foldedGroup(title);
    for (const [name, control] of Object.entries(members)) group.append(fieldOf(name, control));
    element("controls").append(group);
  }
  document.querySelectorAll(".plot").forEach(addSaveButtons);
}

function scoreGuess() {
  const answer = answerNow({guess_ms: Number(element("guess-ms").value)});
  show(answer);
  if (!answer.guess) return;
  guesses.points += answer.guess.points;
  guesses.of += answer.guess.of;
  const all =
      guesses.of > answer.guess.of ? ` So far ${guesses.points} of ${guesses.of} points.` : "";
  showText("guessed", answer.guess.text + all);
  element("guess-ms").value = "";
}

function listen() {
  const clicks = {
    reset() {
      pinned = undefined;
      chooseScene("");
      update(true);
    },
    undo: () => history.back(),
    pin() {
      pinned = pinned ? undefined : {...state};
      update(true);
    },
    copy: () => copyCommand(),
    "copy-predict": () => copyCommand("predict"),
    "save-card": () => saveFile(
        "card.json",
        new Blob([JSON.stringify(cardOf(state), null, 2)], {type: "application/json"})),
  };
  for (const [id, act] of Object.entries(clicks)) element(id).addEventListener("click", act);
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  element("scene").addEventListener("change", () => {
    chooseScene(element("scene").value);
    update(true);
  });
  element("known-model")
      .addEventListener("change", () => chooseModel(element("known-model").value));
  element("guess-first").addEventListener("change", () => update(true));
  element("guess").addEventListener("submit", (event) => {
    event.preventDefault();
    scoreGuess();
  });
  const chosen = element("traces");
  chosen.addEventListener("change", () => {
    takeTraces(chosen.files);
    chosen.value = "";  // so that the same may be chosen again
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    takeTraces(event.dataTransfer.files);
  });
  // Also after a change of the address by hand.
  window.addEventListener("popstate", () => {
    readAddress();
    update();
  });
}

makeControls();
listen();
showMeasurements();
readAddress();
explaining = load().then(() => update(), (error) => {
  showText("headline", "");
  showText("error", `This browser cannot run the page: ${error.message}`);
});
