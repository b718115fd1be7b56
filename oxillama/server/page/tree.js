/** A conversation: messages that are a tree, of which one branch is shown. */

import { newId } from "./dom.js";

const DEFAULTS = { temperature: 0.7, max_tokens: 1024, min_p: 0.05, probabilities: true };
const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

export class Conversation {
  constructor(chat, messages = []) {
    Object.assign(this, { chat, messages: new Map(), children: new Map(), last: 0 });
    for (const message of messages.sort((a, b) => a.at - b.at)) this.keep(message);
  }

  static begun(model) {
    return new Conversation({ id: newId(), title: "", model, settings: { ...DEFAULTS }, leaf: null });
  }

  keep(message) {
    this.messages.set(message.id, message);
    this.below(message.parent).push(message);
    this.last = message.at;
  }

  /** The messages that follow one, a branch each. */
  below(id) {
    if (!this.children.has(id)) this.children.set(id, []);
    return this.children.get(id);
  }

  /** Adds a message below another, and shows it. */
  add(role, parent, more) {
    const at = Math.max(Date.now(), this.last + 1);
    const message = { id: newId(), chat: this.chat.id, parent, role, at, content: "", ...more };
    this.keep(message);
    Object.assign(this.chat, { leaf: message.id, updated: at });
    return message;
  }

  /** The messages that are shown, or those up to one of them. */
  path(leaf = this.chat.leaf) {
    const found = [];
    for (let one = this.messages.get(leaf); one; one = this.messages.get(one.parent)) found.push(one);
    return found.reverse();
  }

  /** Shows the branch that a message begins, to its newest end. */
  choose(message) {
    let end = message;
    while (this.below(end.id).length) end = this.below(end.id).at(-1);
    this.chat.leaf = end.id;
  }

  /** The branch up to a message as the API takes it. Questions that have no answer are one with the next. */
  said(leaf, system) {
    const found = system ? [{ role: "system", content: system }] : [];
    for (const one of this.path(leaf)) {
      if (one.role === "tool") found.push({ role: "tool", tool_call_id: one.call, content: one.content });
      else if (one.role === "user" && found.at(-1)?.role === "user") found.at(-1).content += `\n\n${textOf(one)}`;
      else if (one.role === "user") found.push({ role: "user", content: textOf(one) });
      else if (one.content || one.calls.length) found.push({ role: "assistant", content: one.content, ...callsOf(one) });
    }
    return found;
  }

  /** The branch that is shown, as Markdown. */
  markdown() {
    const calls = (one) => (one.calls ?? []).map((call) => `\n\n\`${call.name}(${call.arguments})\``).join("");
    const parts = this.path().map((one) => `## ${NAMES[one.role]}\n\n${textOf(one)}${calls(one)}\n`);
    return [`# ${this.chat.title}\n`, ...parts].join("\n");
  }
}

/** The text of a message, with the files that are attached to it before it. */
function textOf(message) {
  const fence = (text) => "`".repeat(Math.max(3, ...(text.match(/`{3,}/g) ?? []).map((run) => run.length + 1)));
  const shown = ({ name, text }) => `${name}:\n${fence(text)}\n${text}\n${fence(text)}\n\n`;
  return (message.files ?? []).map(shown).join("") + message.content;
}

function callsOf({ calls }) {
  const shaped = ({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } });
  return calls.length ? { tool_calls: calls.map(shaped) } : {};
}
