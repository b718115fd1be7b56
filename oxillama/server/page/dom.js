/** Elements, and what the page tells its reader. */

const SVG = "http://www.w3.org/2000/svg";
export const at = (id) => document.getElementById(id);

/** An element. given: listeners (`onclick`), properties and attributes. Children that are null are left out. */
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** A button that is an icon, with a name for those who don't see it. */
export function tool(icon, label, onclick, more = {}) {
  const drawing = document.createElementNS(SVG, "svg"), use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `page/icons.svg#${icon}`);
  drawing.append(use);
  return el("button", { type: "button", class: "icon", ariaLabel: label, title: label, onclick, ...more }, drawing);
}

/** Tells screen readers what has happened. */
export const say = (text) => { at("status").textContent = text; };

/** Shows what went wrong above the message box; "" takes it away. */
export function notice(text) {
  at("notice").textContent = text;
  at("notice").hidden = !text;
}

/** Copies a text. By the event, since pages of other machines don't get the clipboard without TLS. */
export function copy(text) {
  const put = (event) => {
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  };
  document.addEventListener("copy", put, { once: true });
  say(document.execCommand("copy") ? "Copied" : "It can't be copied");
}

/** What a JSON text stands for; undefined of any other text. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export const download = (name, text, type) => el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name }).click();

/** Opens a dialog. Gives whether it was closed by its button, not left. */
export function confirmed(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => { dialog.onclose = () => resolve(dialog.returnValue === "yes"); });
}

/** Random letters and digits. `crypto.randomUUID` is for pages with TLS alone. */
export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)), (part) => part.toString(36)).join("");
