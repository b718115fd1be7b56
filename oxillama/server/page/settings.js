/** Settings: of a conversation in their dialog, and the colours of the page. */

import { at, parsed } from "./dom.js";

const NEXT_THEME = { "": "light", light: "dark", dark: "" }; // "": as the system has it
const theme = () => localStorage.getItem("oxillama-theme") ?? "";

/** Begins to listen. settings(): of the open conversation; changed(): they are others. */
export function startSettings({ settings, changed }) {
  const dialog = at("settings"), fields = [...dialog.querySelectorAll("[name]")];
  at("open-settings").addEventListener("click", () => {
    for (const one of fields) {
      one[one.type === "checkbox" ? "checked" : "value"] = settings()[one.name] ?? "";
      one.setCustomValidity("");
    }
    dialog.showModal();
  });
  const take = () => {
    for (const one of fields) {
      const value = one.type === "checkbox" ? one.checked : one.type === "number" ? one.valueAsNumber : one.value.trim();
      if (value === "" || Number.isNaN(value) || !one.validity.valid) delete settings()[one.name];
      else settings()[one.name] = value;
    }
    changed();
  };
  for (const name of ["submit", "close"]) dialog.addEventListener(name, take); // the latter comes later, and alone by Escape
  dialog.querySelector("[name=tools]").addEventListener("input", ({ target }) => {
    target.setCustomValidity(!target.value.trim() || Array.isArray(parsed(target.value)) ? "" : "Tools are a JSON list of functions.");
  });
  at("theme").addEventListener("click", () => {
    localStorage.setItem("oxillama-theme", NEXT_THEME[theme()]);
    showTheme();
  });
  showTheme();
}

function showTheme() {
  document.documentElement.dataset.theme = theme();
  at("theme").title = at("theme").ariaLabel = `Colours: ${theme() || "as the system"}`;
}
