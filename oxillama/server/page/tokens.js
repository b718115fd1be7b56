/** Tokens of an answer, with their probabilities, what else could have come, and a way to go on from there. */

import { at, el } from "./dom.js";

const pop = at("pop");
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
let open = null, closing = 0; // the element of the token that is explained; a timer

const percent = (logprob) => Math.exp(logprob).toLocaleString(undefined, { style: "percent", maximumSignificantDigits: 2 });
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "(no text)";

export function closeTokens() {
  open?.classList.remove("open");
  open = null;
  pop.hidden = true;
}

const closeSoon = () => { clearTimeout(closing); closing = setTimeout(closeTokens, 250); };
pop.addEventListener("pointerenter", () => clearTimeout(closing));
pop.addEventListener("pointerleave", closeSoon);
pop.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.stopPropagation();
  open.parentElement.focus();
  closeTokens();
});
document.addEventListener("pointerdown", ({ target }) => { if (!pop.contains(target) && !open?.contains(target)) closeTokens(); });

/** The text of an answer by tokens. fork(index, other): called for one to go on with; null where that can't be. */
export function tokenView(answer, fork) {
  const shown = answer.tokens.map((token, index) => ({ ...token, index })).filter(({ place }) => place !== null);
  const parts = shown.map((token, i) => {
    const text = answer.content.slice(token.place, shown[i + 1]?.place);
    const ariaLabel = `${visible(text)}, ${percent(token.logprob)}`;
    const part = el("span", { id: `t-${answer.id}-${token.index}`, role: "option", ariaLabel }, text);
    part.style.setProperty("--doubt", 1 - Math.exp(token.logprob));
    part.explain = () => explain(part, token, fork && ((other) => fork(token.index, other)));
    return part;
  });
  const ariaLabel = "Tokens: arrow keys show each, Enter what else could have come";
  const list = el("div", { class: "tokens", role: "listbox", tabIndex: 0, ariaLabel }, ...parts);
  list.addEventListener("pointerover", ({ target, pointerType }) => { if (pointerType !== "touch") target.explain?.(); });
  list.addEventListener("click", ({ target }) => target.explain?.());
  list.addEventListener("pointerleave", closeSoon);
  list.addEventListener("keydown", (event) => move(event, list, parts));
  return list;
}

function move(event, list, parts) {
  const next = parts[Math.min(Math.max(parts.indexOf(open) + STEPS[event.key], 0), parts.length - 1)];
  if (next) {
    next.scrollIntoView({ block: "nearest" });
    next.explain();
    list.setAttribute("aria-activedescendant", next.id);
  } else if (event.key === "Enter" && open) pop.querySelector("button:not(:disabled)")?.focus();
  else if (event.key === "Escape" && open) closeTokens();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function explain(part, token, fork) {
  clearTimeout(closing);
  closeTokens();
  open = part;
  part.classList.add("open");
  const all = token.top.some((one) => one.id === token.id) ? token.top : [...token.top, token];
  pop.replaceChildren(el("p", {}, "Likeliest here, before sampling"), ...all.map((one) => choice(one, token, fork)));
  pop.hidden = false;
  const [{ left, top, bottom }] = [...part.getClientRects()].sort((a, b) => b.width - a.width); // it may begin on a line before
  const { offsetWidth: width, offsetHeight: height } = pop;
  pop.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  pop.style.top = `${bottom + height + 8 < innerHeight ? bottom + 3 : Math.max(8, top - height - 3)}px`;
}

/** A token that could have come, with which another answer begins. */
function choice(one, token, fork) {
  const possible = fork && one.text && !`${one.text}${token.text}`.includes("\ufffd"); // no part of a character
  const row = el("button", {
    type: "button", class: one.id === token.id ? "taken" : "", disabled: !possible,
    ariaLabel: `${visible(one.text)}, ${percent(one.logprob)}${possible ? ", fork here" : ""}`,
    title: `Token ${one.id}`, onclick: () => { closeTokens(); fork(one); },
  }, el("code", {}, visible(one.text)), possible ? el("span", { class: "fork" }, "fork here") : null, percent(one.logprob));
  row.style.setProperty("--share", Math.exp(one.logprob));
  return row;
}
