/** The list of conversations: by day, searched, renamed, exported and deleted. */

import { at, confirmed, download, el, tool } from "./dom.js";
import { exported, listChats, listMessages, remove, save } from "./store.js";

const DAY = 86_400_000;
let actions, turn = 0; // open(id), isOpen(id), runs(id), renamed(chat), removed(id); number of the newest list

export function startSide(given) {
  actions = given;
  at("search").addEventListener("input", list);
  at("export-all").addEventListener("click", () => exportChats(null, "conversations"));
}

export const fileName = (title) => title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim() || "conversation";
export const exportChats = async (id, title) => download(`${fileName(title)}.json`, await exported(id), "application/json");

export async function list() {
  const own = (turn += 1), sought = at("search").value.trim().toLowerCase();
  const found = await search(await listChats(), sought);
  if (own !== turn || at("list").querySelector("input")) return; // a name is being typed
  const days = Map.groupBy(found, ([chat]) => dayOf(chat.updated));
  const parts = [...days].flatMap(([day, chats]) => [el("h2", {}, day), el("ul", {}, ...chats.map(entry))]);
  const none = sought ? "Nothing has this text." : "Conversations are kept in this browser alone.";
  at("list").replaceChildren(...(parts.length ? parts : [el("p", {}, none)]));
}

/** The conversations in which a text is, with the place where it is. */
async function search(chats, sought) {
  const places = new Map();
  for (const { chat, content } of sought ? await listMessages() : []) {
    const place = content.toLowerCase().indexOf(sought);
    if (place >= 0) places.set(chat, content.slice(Math.max(0, place - 20), place + 60));
  }
  const found = chats.filter((chat) => chat.title.toLowerCase().includes(sought) || places.has(chat.id));
  return found.map((chat) => [chat, places.get(chat.id)]);
}

function dayOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  return time >= today - 7 * DAY ? "Last week" : new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

function entry([chat, place]) {
  const { id, title } = chat, isOpen = actions.isOpen(id), ends = place ? el("small", {}, place) : null;
  const named = { type: "button", class: "entry", title, onclick: () => actions.open(id), ariaCurrent: isOpen };
  const open = el("button", named, title, ends);
  const row = el("li", { class: `${isOpen ? "open" : ""} ${actions.runs(id) ? "runs" : ""}` }, open,
    tool("edit", `Rename ${title}`, () => rename(open, chat)),
    tool("export", `Export ${title}`, () => exportChats(id, title)),
    tool("delete", `Delete ${title}`, () => drop(chat)));
  return row;
}

async function drop({ id, title }) {
  at("sure-text").textContent = `Delete “${title}”? It can't be brought back.`;
  if (!(await confirmed(at("sure")))) return;
  actions.removed(id);
  await remove(id);
  list();
}

function rename(open, chat) {
  const box = el("input", { value: chat.title, maxLength: 200, ariaLabel: "Name of the conversation" });
  let ended = false;
  const end = async (title) => {
    if (ended) return; // leaving the page's tree, the box loses the focus
    ended = true;
    box.replaceWith(open);
    if (title && title !== chat.title) {
      chat.title = title;
      actions.renamed(chat);
      await save(chat);
    }
    list();
  };
  box.addEventListener("blur", () => end(box.value.trim()));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) end(box.value.trim());
    if (event.key === "Escape") { event.stopPropagation(); end(""); }
  });
  open.replaceWith(box);
  box.select();
}
