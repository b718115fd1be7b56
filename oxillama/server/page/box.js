/** The message box: text, attached files, and the schema that answers are held to. */

import { at, el, notice, tool } from "./dom.js";

const MOST = 1 << 20; // bytes of a file
const EXAMPLE = `{
  "type": "object",
  "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}},
  "required": ["answer", "sure"]
}`;
let files = [];

/** Begins to listen. send(text, files); settings(): of the open conversation; changed(): they are others. */
export function startBox({ send, settings, changed }) {
  const prompt = at("prompt"), form = at("form"), schema = at("schema");
  const submit = (event) => {
    event.preventDefault();
    const text = prompt.value.trim();
    if ((!text && !files.length) || at("go").hidden || (settings().held && !schemaIsJson())) return;
    prompt.value = "";
    send(text, files);
    files = [];
    showFiles();
    grow();
  };
  form.addEventListener("submit", submit);
  prompt.addEventListener("input", grow);
  prompt.addEventListener("keydown", (event) => {
    // Enter that ends the composition of a character sends nothing; Safari tells it by its key code alone.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) submit(event);
  });
  at("attach").addEventListener("change", ({ target }) => attach([...target.files]).then(() => { target.value = ""; }));
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      form.classList.toggle("drop", name === "dragover");
      if (name === "drop") attach(event.dataTransfer.files);
    });
  }
  const hold = (held) => {
    Object.assign(settings(), { held, schema: schema.value ||= EXAMPLE });
    showSchema(settings());
    changed();
    (held ? schema : prompt).focus();
  };
  at("schema-on").addEventListener("click", () => hold(!settings().held));
  at("schema-off").addEventListener("click", () => hold(false));
  schema.addEventListener("change", () => { settings().schema = schema.value; schemaIsJson(); changed(); });
}

function schemaIsJson() {
  try {
    JSON.parse(at("schema").value);
    at("schema-fault").textContent = "";
    return true;
  } catch (error) {
    at("schema-fault").textContent = error.message;
    at("schema").focus();
    return false;
  }
}

export function showSchema({ held = false, schema = "" }) {
  at("schema").value = schema;
  at("schema-box").hidden = !held;
  at("schema-on").ariaPressed = held;
}

function grow() {
  const { style } = at("prompt");
  style.height = "auto";
  style.height = `${at("prompt").scrollHeight + 2}px`;
}

async function attach(given) {
  notice("");
  for (const file of given) {
    const text = file.size <= MOST && new TextDecoder().decode(await file.arrayBuffer());
    if (text === false) notice(`${file.name} can't be attached: it has more than 1 MiB.`);
    else if (/[\0\ufffd]/.test(text)) notice(`${file.name} can't be attached: it is no text.`);
    else files.push({ name: file.name, text });
  }
  showFiles();
  at("prompt").focus();
}

function showFiles() {
  const drop = (file) => { files = files.filter((one) => one !== file); showFiles(); };
  const shown = (file) => el("li", {}, file.name, tool("close", `Leave out ${file.name}`, () => drop(file)));
  at("files").replaceChildren(...files.map(shown));
}
