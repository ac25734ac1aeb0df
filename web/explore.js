"use strict";

// The page around the module: it shows controls, asks what they say (src/lab/predict/explorer.h),
// and shows the answer. All numbers, texts and plots are the module's.

const element = (id) => document.getElementById(id);
const cards = JSON.parse(element("cards").textContent);
const scenes = JSON.parse(element("scenes").textContent);

// The page starts from four ranks, or from as many devices as its first machine has.
const firstCard = cards[element("first-card").textContent];
const firstRanks = firstCard.network ? 4 : Math.min(4, firstCard.node.devices);

// The controls by group. A number has a slider from `min` to `max` with even factors; the field
// beside it takes anything. What the trainers call an option has the same name here.
const groups = {
  Model: {
    dim: {label: "width", value: "8192", min: 64, max: 32768},
    depth: {label: "depth (layers)", value: "6", min: 1, max: 48},
    layers: {label: "widths W0,W1,… instead", value: ""},
    "batch-size": {label: "batch", value: "64", min: 1, max: 65536},
    "batch-per-rank": {label: "batch is each rank's", value: "", flag: true},
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
  Ranks: {
    ranks: {label: "ranks or devices", value: String(firstRanks), min: 1, max: 64},
    scheme: {
      label: "scheme",
      value: "ddp",
      choices: ["ddp", "zero1", "zero2", "zero3", "factor", "server", "data-parallel"],
    },
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
  Machine: {
    card: {label: "machine", value: element("first-card").textContent, choices: Object.keys(cards)},
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

let state = {};
let module, instance;

// The module.

function newInstance() {
  const imports = {
    page: {
      refuse(text, bytes) { throw new Error(decoded(text, bytes)); },
    },
  };
  // The C library imports files and clocks, which this code does not use: "not supported".
  for (const {module: from, name, kind} of WebAssembly.Module.imports(module)) {
    imports[from] ??= {};
    imports[from][name] ??= kind === "tag" ? new WebAssembly.Tag({parameters: ["i32"]}) : () => 52;
  }
  const created = new WebAssembly.Instance(module, imports);
  created.exports._initialize();
  return created;
}

function decoded(text, bytes) {
  return new TextDecoder().decode(new Uint8Array(instance.exports.memory.buffer, text, bytes));
}

/** The answer, or {error} with the product's line. After an error the next instance is new. */
function ask(question) {
  try {
    instance ??= newInstance();
    const text = new TextEncoder().encode(JSON.stringify(question));
    const room = instance.exports.question_of(text.length);
    new Uint8Array(instance.exports.memory.buffer, room, text.length).set(text);
    const bytes = instance.exports.answer_question();
    return JSON.parse(decoded(instance.exports.answer_text(), bytes));
  } catch (error) {
    instance = undefined;
    const failed = error instanceof WebAssembly.RuntimeError || error instanceof RangeError;
    const tooLarge = "This is too large for the page; run it by mlp_lab predict.";
    return {error: failed ? tooLarge : error.message};
  }
}

async function load() {
  const bytes = Uint8Array.from(atob(element("module").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  module = new WebAssembly.Module(await new Response(stream).arrayBuffer());
}

// The question.

/** Why the module cannot be asked, in the words of the controls; empty if it can. */
function refusalOf(state) {
  const refuse = (name, why) => `${controls[name].label} '${state[name]}': ${why}`;
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
  return "";
}

/** The state's card: its rates replaced, and all times of messages divided by `links`. */
function cardOf(state) {
  const card = structuredClone(cards[state.card]);
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

function questionOf(state) {
  const options = {};
  for (const [name, value] of Object.entries(state)) {
    if (notOptions.has(name) || controls[name].rate || value === controls[name].value) continue;
    options[name] = value;
  }
  const question = {
    card: cardOf(state),
    ranks: Number(state.ranks),
    options,
  };
  if (state.memory !== "") question.memory = state.memory;
  return question;
}

// The answer.

function fillTable(id, caption, columns, rows) {
  const table = element(id);
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

function show(answer) {
  showText("error", answer.error ?? "");
  const hides = element("guess-first").checked && answer.error === undefined;
  element("answers").setAttribute("aria-busy", "false");
  element("status").textContent =
      hides ? "The answer is hidden until you have guessed." : (answer.headline ?? "");
  element("guess").hidden = !hides;
  element("answer").hidden = hides || answer.error !== undefined;
  showText("guessed", "");
  if (answer.error !== undefined) return;
  element("headline").textContent = answer.headline;
  showText("shortage", answer.shortage);
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
  element("explain").textContent = answer.explain;
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
      update();
    });
    element("measurements").tBodies[0].rows[i].cells[0].replaceChildren(button);
  });
}

function update() {
  for (const [name, value] of Object.entries(state)) fillControl(name, value);
  keepAddress();
  const refusal = refusalOf(state);
  show(refusal === "" ? ask(questionOf(state)) : {error: refusal});
  document.body.dataset.shown = "";
}

// The state and the address.

const defaults = () =>
    Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value]));

function keepAddress() {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value !== controls[name].value) parts.set(name, value);
  }
  if (element("scene").value !== "") parts.set("scene", element("scene").value);
  if (element("guess-first").checked) parts.set("guess", "1");
  history.replaceState(null, "", `#${parts}`);
}

/** Takes what it knows of the address; values are checked by the module, as any others. */
function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  state = defaults();
  chooseScene(parts.get("scene") ?? "");
  for (const [name, value] of parts) {
    if (Object.hasOwn(controls, name)) state[name] = value.slice(0, 200);
  }
  element("guess-first").checked = parts.get("guess") === "1";
}

function chooseScene(number) {
  const scene = scenes[number];
  element("scene").value = scene === undefined ? "" : number;
  showText("scene-question", scene?.question ?? "");
  state = {...defaults(), ...scene?.state};
}

// The controls.

const sliderSteps = 200;

function fillControl(name, value) {
  const {min, max, flag} = controls[name];
  const field = element(name);
  if (flag) {
    field.checked = value === "true";
  } else if (field.value !== value) {
    field.value = value;
  }
  if (min === undefined) return;
  const place = Math.log(Number(value) / min) / Math.log(max / min);
  element(`${name} slider`).value = Number.isFinite(place) ? Math.round(sliderSteps * place) : 0;
}

function change(name, value) {
  state[name] = value;
  update();
}

function valueAt(place, {min, max}) {
  const value = min * (max / min) ** (place / sliderSteps);
  if (!Number.isInteger(min)) return String(Number(value.toPrecision(3)));
  // Sizes are mostly powers of two: the slider stops at those and half-way.
  const power = 2 ** Math.floor(Math.log2(value));
  return String(value < 8 ? Math.round(value) : power * Math.round((2 * value) / power) / 2);
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
  slider.max = sliderSteps;
  slider.setAttribute("aria-label", `${control.label}, slider`);
  slider.addEventListener("input", () => change(name, valueAt(Number(slider.value), control)));
  row.append(slider);
  return row;
}

/** Browsers have a clipboard for pages only that came from this machine or by https. */
async function copyCommand() {
  const command = element("command");
  try {
    await navigator.clipboard.writeText(command.textContent);
    element("copied").textContent = "copied";
  } catch {
    getSelection().selectAllChildren(command);
    element("copied").textContent = "selected; press Ctrl+C, or Cmd+C, to copy it";
  }
}

function makeControls() {
  scenes.forEach((scene, i) => element("scene").append(new Option(scene.title, String(i))));
  for (const [title, members] of Object.entries(groups)) {
    const group = document.createElement("fieldset");
    group.append(document.createElement("legend"));
    group.firstChild.textContent = title;
    for (const [name, control] of Object.entries(members)) group.append(fieldOf(name, control));
    element("controls").append(group);
  }
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  element("scene").addEventListener("change", () => {
    chooseScene(element("scene").value);
    update();
  });
  element("guess-first").addEventListener("change", update);
  element("reset").addEventListener("click", () => {
    chooseScene("");
    update();
  });
  element("guess").addEventListener("submit", (event) => {
    event.preventDefault();
    showText("guessed", `You guessed ${element("guess-ms").value} ms.`);
    element("guess").hidden = true;
    element("answer").hidden = false;
    element("status").textContent = element("headline").textContent;
  });
  element("copy").addEventListener("click", copyCommand);
  window.addEventListener("hashchange", () => {
    readAddress();
    update();
  });
}

makeControls();
showMeasurements();
readAddress();
load().then(
    update, (error) => showText("error", `This browser cannot run the page: ${error.message}`));
