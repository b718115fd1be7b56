/** Messages as they are shown. */

import { canFork } from "./answer.js";
import { copy, el, parsed, tool } from "./dom.js";
import { render } from "./markdown.js";
import { closeTokens, tokenView } from "./tokens.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };
const ENDS = { stopped: "stopped", length: "cut off at the limit of tokens" };
const count = (n, one) => `${n.toLocaleString()} ${one}${n === 1 ? "" : "s"}`;
const button = (text, onclick, more = {}) => el("button", { type: "button", onclick, ...more }, text);

/** JSON with a line for each part; as it is where it lacks its end. */
const asLines = (json) => (parsed(json) ? JSON.stringify(parsed(json), null, 2) : json);

/** A form with a box of text. send(text): called with what was written. */
function textForm(box, buttons, send) {
  const onsubmit = (event) => { event.preventDefault(); if (box.value.trim()) send(box.value); };
  return el("form", { onsubmit }, box, el("div", { class: "row" }, ...buttons));
}

/** The view of one message. actions: what its buttons do. */
export class MessageView {
  constructor(conversation, message, actions) {
    Object.assign(this, { conversation, message, actions, byTokens: false, foot: el("footer") });
    const parts = message.role === "assistant" ? this.partsOfAnswer() : [this.files(), el("div", { class: "text" }, message.content)];
    const named = { class: `message ${message.role}`, ariaLabel: NAMES[message.role], tabIndex: -1 };
    this.node = el("article", named, ...parts, this.foot);
    this.node.view = this;
    this.update();
  }

  files() {
    const shown = ({ name, text }) => el("li", {}, el("details", {}, el("summary", {}, name), el("pre", {}, text)));
    return this.message.files?.length ? el("ul", { class: "chips" }, ...this.message.files.map(shown)) : null;
  }

  partsOfAnswer() {
    Object.assign(this, { thoughts: el("div"), body: el("div", { class: "body" }), calls: el("div"), end: el("div") });
    this.thinking = el("details", { class: "reasoning" }, el("summary"), this.thoughts);
    return [this.thinking, this.body, this.calls, this.end];
  }

  /** Shows what the message has become. running: more will come. */
  update(running = false) {
    if (this.message.role === "assistant") this.updateAnswer(running);
    this.node.ariaBusy = running;
    this.foot.replaceChildren(...(running ? [] : this.buttons()));
  }

  updateAnswer(running) {
    const { content, reasoning, calls, asked, error, again } = this.message;
    this.thinking.hidden = !reasoning;
    this.thinking.firstChild.textContent = running && !content ? "Reasoning…" : "Reasoning";
    this.thoughts.textContent = reasoning;
    if (running && !content && !calls.length) this.show(el("span", { class: "waiting", role: "img", ariaLabel: "Waiting" }));
    else if (this.byTokens) this.show(tokenView(this.message, canFork(this.message) ? this.fork : null));
    else {
      if (!this.body.shown) this.show();
      const held = asked?.held && content, json = held && !running ? asLines(content) : content;
      render(this.body, held ? `\`\`\`json\n${json}\n\`\`\`` : content, !running);
    }
    this.calls.replaceChildren(...calls.map((call) => this.callOf(call, running)));
    const ends = [error ? el("p", { class: "error", role: "alert" }, error) : null, again ? this.besideOthers(again) : null];
    this.end.replaceChildren(...ends.filter(Boolean));
  }

  fork = (index, other) => this.actions.fork(this.message, index, other);

  show(...nodes) {
    this.body.shown = null;
    this.body.replaceChildren(...nodes);
  }

  callOf(call, running) {
    const answered = this.conversation.below(this.message.id).some((one) => one.call === call.id);
    const box = el("textarea", { rows: 2, ariaLabel: `Result of ${call.name}`, placeholder: "Its result" });
    const send = (result) => this.actions.result(this.message, call, result);
    const form = running || answered ? null : textForm(box, [el("button", {}, "Send the result")], send);
    return el("div", { class: "call" }, "Calls ", el("b", {}, call.name), el("pre", {}, asLines(call.arguments)), form);
  }

  besideOthers({ n, differs, others, progress, error }) {
    if (error) return el("p", { class: "again fault" }, error);
    if (!others) return el("p", { class: "again" }, `Asking again beside seven others… ${count(progress, "token")}`);
    const { start = 0, content } = this.message, before = start ? `…${content.slice(Math.max(0, start - 20), start)}` : "";
    const said = differs === null ? `Same bits. All ${count(n, "token")} came again beside seven others.`
      : `Token ${differs + 1} is another one than before.`;
    const keep = (one, i) => button("Keep as a branch", () => this.actions.keep(this.message, one, i + 1));
    const shown = others.map((one, i) => el("div", { class: "other" }, before + one.text, keep(one, i)));
    return el("div", { class: "again" }, el("b", { class: differs === null ? "same" : "fault" }, said),
      el("details", {}, el("summary", {}, "The seven others"), ...shown));
  }

  buttons() {
    const { message, actions } = this, found = [this.branches(), tool("copy", "Copy", () => copy(textOf(message)))];
    if (message.role === "user") found.push(tool("edit", "Edit, in a new branch", () => this.edit()));
    if (message.role === "assistant") {
      found.push(tool("again", "Answer again, in a new branch", () => actions.again(message)));
      if (canGoOn(message)) found.push(tool("go", "Go on", () => actions.goOn(message)));
      const pressed = { ariaPressed: this.byTokens };
      if (message.content && message.tokens.length) found.push(tool("chance", "Probabilities of its tokens", () => this.toggle(), pressed));
      if (message.ids.length && !message.wentOn) {
        found.push(tool("same", "Ask again beside seven others: same bits", () => actions.beside(message)));
      }
      found.push(el("span", { class: "facts" }, factsOf(message)));
    }
    return found.filter(Boolean);
  }

  branches() {
    const siblings = this.conversation.below(this.message.parent), place = siblings.indexOf(this.message);
    const step = (sign, to, ariaLabel) => button(sign, () => this.actions.choose(to), { ariaLabel, disabled: !to });
    return siblings.length < 2 ? null : el("span", { class: "branch" }, step("‹", siblings[place - 1], "Branch before"),
      `${place + 1} / ${siblings.length}`, step("›", siblings[place + 1], "Next branch"));
  }

  toggle() {
    this.byTokens = !this.byTokens;
    closeTokens();
    this.show();
    this.update();
    (this.byTokens ? this.body.firstChild : this.foot.querySelector("[aria-pressed]")).focus();
  }

  edit() {
    const { content } = this.message, text = this.node.querySelector(".text");
    const box = el("textarea", { value: content, rows: Math.min(12, content.split("\n").length + 1), ariaLabel: "Edited message" });
    const end = () => { form.replaceWith(text); this.foot.hidden = false; };
    const send = (edited) => { end(); this.actions.edit(this.message, edited); };
    const form = textForm(box, [el("button", { class: "go" }, "Send"), button("Cancel", end)], send);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
      if (event.key === "Escape") { event.stopPropagation(); end(); }
    });
    text.replaceWith(form);
    this.foot.hidden = true;
    box.focus();
  }
}

const textOf = ({ content, calls = [] }) => content || calls.map((call) => call.arguments).join("\n");

/** Whether more can come behind an answer: where its end is no end, and nothing held it that could not hold the rest. */
const canGoOn = (m) => ["stopped", "length"].includes(m.finish) && m.content && m.prompt && !m.asked.held && !m.calls.length;

function factsOf({ model, usage, timings, ids, seconds, finish }) {
  const n = usage?.completion_tokens ?? ids.length, took = timings?.decode_seconds || seconds;
  const parts = [model, n && count(n, "token"), n > 1 && took && `${(n / took).toFixed(1)} tokens/s`];
  const { prompt_tokens: n_prompt, prompt_tokens_details: details } = usage ?? {};
  parts.push(usage && `${details.cached_tokens.toLocaleString()} of ${count(n_prompt, "prompt token")} cached`, ENDS[finish]);
  return parts.filter(Boolean).join(" · ");
}
