/** The page: the conversation that is open, what is asked in it, and how it is shown. */

import { askBeside, blank, forked, stream } from "./answer.js";
import { chatRequest, listModels, tokensRequest } from "./api.js";
import { showSchema, startBox } from "./box.js";
import { at, download, el, notice, say } from "./dom.js";
import { startSettings } from "./settings.js";
import { exportChats, fileName, list, startSide } from "./side.js";
import { listChats, listMessages, onChange, save } from "./store.js";
import { closeTokens } from "./tokens.js";
import { Conversation } from "./tree.js";
import { MessageView } from "./view.js";

const log = at("log"), place = at("messages");
const FIRST = 30; // messages that are shown at once; older ones follow when the browser is idle
const OPEN = "oxillama-open"; // id of the conversation that a tab shows when it is loaded again
const STATES = { idle: " (loads when asked)", loading: " (is being loaded)", failed: " (can't be used)" };
const BEGINNINGS = ["Tell me a story about a cat.", "Explain recursion with an example in Python.", "Make a table of the planets."];
const runs = new Map(); // of conversations that are being answered: {conversation, message, controller}
let models = [], open = Conversation.begun("");

// ---- what is shown
async function refreshModels() {
  try {
    models = await listModels();
  } catch (error) {
    return notice(`The models can't be listed: ${error.message}`);
  }
  const shown = ({ id, quantization, state }) => [id, quantization && ` · ${quantization}`, STATES[state]].join("");
  at("model").replaceChildren(...models.map((one) => new Option(shown(one), one.id)));
  showModel();
  if (!models.length) notice("No model here answers conversations.");
  if (models.some((one) => one.state === "loading")) setTimeout(refreshModels, 2000);
}

/** Shows the model of the conversation, its state, and how much of its context is filled. */
function showModel() {
  const model = models.find((one) => one.id === open.chat.model) ?? models[0], size = model?.context_length;
  const last = open.path().findLast((one) => one.prompt);
  const used = last && (last.usage?.total_tokens ?? last.prompt.length + last.ids.length);
  at("model").value = model?.id ?? "";
  at("state").className = model?.state ?? "";
  at("context").hidden = !used || !size;
  at("filled").value = used / size || 0;
  at("filled-text").textContent = `${used?.toLocaleString()} of ${size?.toLocaleString()} tokens`;
}

const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
const toEnd = () => { log.scrollTop = log.scrollHeight; };
const showTitle = () => { at("title").textContent = document.title = open.chat.title || "New conversation"; };
const viewOf = (message) => [...place.children].find((node) => node.view?.message === message)?.view;

/** Shows the branch that is chosen. focus: the message that gets the focus. */
function show(focus) {
  closeTokens();
  const path = open.path(), views = (some) => some.map((one) => new MessageView(open, one, actions).node);
  place.replaceChildren(...(path.length ? views(path.slice(-FIRST)) : [welcome()]));
  showTitle();
  showRun();
  showModel();
  showSchema(open.chat.settings);
  toEnd();
  if (focus) viewOf(focus)?.node.focus();
  showOlder(path.slice(0, -FIRST), views, place.firstChild);
}

function showOlder(rest, views, before) {
  if (!rest.length) return;
  (window.requestIdleCallback ?? setTimeout)(() => {
    if (!before.isConnected) return; // another branch is shown
    const below = log.scrollHeight - log.scrollTop, nodes = views(rest.slice(-FIRST));
    for (const node of nodes) node.classList.add("old");
    place.prepend(...nodes);
    log.scrollTop = log.scrollHeight - below;
    showOlder(rest.slice(0, -FIRST), views, nodes[0]);
  });
}

function welcome() {
  const begin = (text) => el("button", { type: "button", onclick: () => send(text, []) }, text);
  const said = "Answered on this server, by its processor alone. Nothing leaves it.";
  return el("div", { class: "empty" }, el("h2", {}, "What is on your mind?"), said, el("div", { class: "row" }, ...BEGINNINGS.map(begin)));
}

function showRun() {
  const run = runs.get(open.chat.id);
  at("go").hidden = Boolean(run);
  at("stop").hidden = !run;
  if (run) viewOf(run.message)?.update(true);
}

async function openChat(id) {
  const running = runs.get(id)?.conversation;
  const chat = running?.chat ?? (id && (await listChats()).find((one) => one.id === id)); // a new one is there at once
  open = running ?? (chat ? new Conversation(chat, await listMessages(id)) : Conversation.begun(at("model").value));
  for (const one of open.messages.values()) if (!running && one.role === "assistant") one.finish ??= "stopped";
  sessionStorage.setItem(OPEN, open.chat.id);
  document.body.classList.remove("side");
  notice("");
  show();
  list();
  at("prompt").focus();
}

async function keep(conversation, ...messages) {
  try {
    if (!conversation.gone) await save(conversation.chat, ...messages);
  } catch (error) {
    notice(`This browser can't keep it: ${error.message}. Export conversations, and delete some.`);
  }
}

// ---- what is asked
/** Runs what changes a message; shows and keeps it as it grows. */
async function run(message, work) {
  const conversation = open, own = { conversation, message, controller: new AbortController() };
  runs.set(open.chat.id, own);
  showRun();
  keep(conversation, message).then(list);
  let drawn = 0, saved = performance.now(), waits = false, ended = false;
  const draw = () => {
    const began = performance.now(), follow = isAtEnd();
    waits = false;
    if (!ended) viewOf(message)?.update(runs.has(conversation.chat.id));
    if (follow) toEnd();
    drawn = performance.now() - began;
  };
  await work(own.controller.signal, () => {
    if (performance.now() - saved > 2000) { saved = performance.now(); keep(conversation, message); }
    if (!waits) setTimeout(() => requestAnimationFrame(draw), 4 * drawn); // a fifth of the time at most
    waits = true;
  });
  runs.delete(conversation.chat.id);
  draw();
  ended = true;
  await keep(conversation, message);
  showRun();
  list();
  refreshModels();
}

async function answer(message, request) {
  await run(message, (signal, changed) => stream(message, request, signal, changed));
  say(message.error ?? `Answer: ${message.content || message.calls.map((call) => `calls ${call.name}`).join(", ")}`);
}

/** Asks for an answer below a message. begun: what it begins with, where another one was forked. */
function reply(parent, begun = {}) {
  open.chat.model = begun.model ?? at("model").value;
  const message = open.add("assistant", parent, { ...blank(open.chat.model, open.chat.settings), ...begun });
  show();
  answer(message, requestOf(message));
}

const requestOf = (message) => (message.begun ? tokensRequest(message, message.begun)
  : chatRequest(message, open.said(message.parent, message.asked.system)));

function send(text, files) {
  notice("");
  open.chat.title ||= (text || files[0].name).replace(/\s+/g, " ").slice(0, 80);
  const message = open.add("user", open.chat.leaf, { content: text, files });
  keep(open, message);
  reply(message.id);
}

const actions = {
  again: (message) => reply(message.parent),
  fork: (message, index, other) => reply(message.parent, forked(message, index, other)),
  edit(message, text) {
    const edited = open.add("user", message.parent, { content: text, files: message.files });
    keep(open, edited);
    reply(edited.id);
  },
  choose(message) {
    open.choose(message);
    keep(open);
    show(message);
  },
  goOn(message) {
    message.wentOn = true;
    answer(message, tokensRequest(message, message.ids.length));
  },
  result(message, call, text) {
    const given = open.add("tool", open.chat.leaf, { content: text, call: call.id });
    keep(open, given);
    const answered = open.path().map((one) => one.call);
    if (message.calls.every((one) => answered.includes(one.id))) reply(given.id);
    else show(given);
  },
  keep({ model, seed, asked, prompt, begun, start, parent, content, ids }, other, i) {
    const made = { prompt, begun, start, finish: "stop", seed: seed + i, content: content.slice(0, start ?? 0) + other.text };
    const kept = { ...blank(model, asked), ...made, ids: [...ids.slice(0, begun ?? 0), ...other.ids] };
    const message = open.add("assistant", parent, kept);
    keep(open, message);
    show(message);
  },
  beside: (message) => run(message, async (signal, changed) => {
    const grown = (progress) => { message.again = { progress }; changed(); };
    try {
      message.again = await askBeside(message, requestOf(message), signal, grown);
      say(message.again.differs === null ? "The same bits" : "Another answer");
    } catch (error) {
      message.again = error.name === "AbortError" ? null : { error: error.message };
    }
  }),
};
// One answer of a conversation at a time.
for (const [name, act] of Object.entries(actions)) {
  actions[name] = (...given) => (runs.has(open.chat.id) && name !== "choose" ? null : act(...given));
}

// ---- the beginning
const stop = () => runs.get(open.chat.id)?.controller.abort();
const onOpen = { settings: () => open.chat.settings, changed: () => { if (open.messages.size) keep(open); } };

function drawer(shown) {
  document.body.classList.toggle("side", shown && at("open-side").offsetParent !== null); // where it covers the page
  at("open-side").ariaExpanded = shown;
  at(shown ? "close-side" : "open-side").focus();
}

function pressed(event) {
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("side")) drawer(false);
    else stop();
  }
  if (command && event.shiftKey && event.code === "KeyO") openChat();
  else if (command && event.code === "KeyK") { drawer(true); at("search").focus(); }
  else return;
  event.preventDefault();
}

startSide({
  open: openChat,
  isOpen: (id) => id === open.chat.id,
  runs: (id) => runs.has(id),
  renamed({ id, title }) {
    for (const one of [open, runs.get(id)?.conversation]) if (one?.chat.id === id) one.chat.title = title;
    showTitle();
  },
  removed(id) {
    const running = runs.get(id);
    if (running) running.conversation.gone = true; // so that its end doesn't write it again
    running?.controller.abort();
    if (id === open.chat.id) openChat();
  },
});
startBox({ ...onOpen, send });
startSettings(onOpen);
for (const [id, act] of Object.entries({
  new: () => openChat(), stop, "open-side": () => drawer(true), "close-side": () => drawer(false), down: toEnd,
  "export-one": () => exportChats(open.chat.id, open.chat.title),
  "export-text": () => download(`${fileName(open.chat.title)}.md`, open.markdown(), "text/markdown"),
})) at(id).addEventListener("click", act);
document.querySelector("main").addEventListener("pointerdown", () => document.body.classList.remove("side"));
at("model").addEventListener("change", () => { open.chat.model = at("model").value; showModel(); });
log.addEventListener("scroll", () => { at("down").hidden = isAtEnd(); closeTokens(); });
document.addEventListener("keydown", pressed);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refreshModels(); });
onChange(list);
fetch("openapi.json", { method: "HEAD" }).then((response) => { at("docs").hidden = !response.ok; }, () => {});
await openChat(sessionStorage.getItem(OPEN));
await refreshModels();
document.body.dataset.ready = "yes";
