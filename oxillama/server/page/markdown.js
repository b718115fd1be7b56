/** Markdown to elements: the one place where text of a model becomes HTML, none of it unchecked. */

import { Marked } from "./vendor/marked.esm.js";
import hljs from "./vendor/highlight.min.js";
import { copy, el } from "./dom.js";

const ALLOWED = {
  ALLOWED_TAGS: `p br hr h3 h4 h5 h6 strong em del code pre blockquote ul ol li table thead tbody tr th td a span input sub sup
    kbd b i u s`.split(/\s+/),
  ALLOWED_ATTR: ["href", "title", "class", "align", "start", "type", "checked", "disabled"],
  ADD_URI_SAFE_ATTR: ["align", "start", "type"], ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true,
};
const HARMLESS = /^<\/?(?:br|sub|sup|kbd|b|i|u|s)\s*\/?>$/i; // of HTML in Markdown; the rest is shown as it is written
const MATHS = new RegExp([
  /\$\$[^]{1,4000}?\$\$/, /\\\[[^]{1,4000}?\\\]/, /\\\([^]{1,4000}?\\\)/, /\$(?![\s$])(?:\\.|[^$\\\n]){1,1000}?(?<!\s)\$(?!\d)/,
].map((form) => `^${form.source}`).join("|"));
const LANGUAGES = `bash c cpp csharp css diff dockerfile go ini java javascript json kotlin lua makefile markdown python ruby
  rust sql typescript xml yaml`.split(/\s+/);
const ALIASES = `sh=bash shell=bash zsh=bash console=bash c++=cpp cc=cpp hpp=cpp h=c c#=csharp cs=csharp scss=css patch=diff
  docker=dockerfile golang=go toml=ini js=javascript jsx=javascript mjs=javascript node=javascript jsonc=json kt=kotlin
  make=makefile md=markdown py=python python3=python rb=ruby rs=rust ts=typescript tsx=typescript html=xml svg=xml vue=xml yml=yaml`;
const NAMES = new Map(ALIASES.split(/\s+/).map((pair) => pair.split("=")));
const escape = (text) => text.replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`);

const marked = new Marked({
  renderer: {
    html: ({ text }) => (HARMLESS.test(text.trim()) ? text : escape(text)),
    heading({ tokens, depth }) {
      const tag = `h${Math.min(depth + 2, 6)}`; // the page has its own first ones
      return `<${tag}>${this.parser.parseInline(tokens)}</${tag}>`;
    },
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`, // nothing is fetched
  },
  extensions: [{
    name: "maths", level: "inline",
    start: (text) => text.match(/\$|\\[([]/)?.index,
    tokenizer: (text) => (MATHS.test(text) ? { type: "maths", raw: MATHS.exec(text)[0] } : undefined),
    renderer: ({ raw }) => `<span class="math">${escape(raw)}</span>`,
  }],
});

const clean = (html) => DOMPurify.sanitize(html, ALLOWED);

/** make(), or what `instead` gives of a text that is nested too deeply. */
function shallow(make, instead) {
  try {
    return make();
  } catch {
    return instead();
  }
}

/** Shows a text in an element; of one that has grown, only what has changed is made anew. done: no more will come. */
export function render(place, text, done) {
  const tokens = shallow(() => marked.lexer(text), () => [{ type: "deep", raw: text }]), shown = (place.shown ??= []);
  let same = 0;
  while (shown[same]?.done && shown[same].raw === tokens[same]?.raw) same += 1;
  for (const old of shown.splice(same)) old.node.remove();
  for (const [i, token] of tokens.slice(same).entries()) {
    const ends = done || same + i < tokens.length - 1;
    const inner = shallow(() => clean(marked.parser([token])), () => el("p", { class: "math" }, token.raw));
    const block = { raw: token.raw, done: ends, node: el("div", { class: "block" }, inner) };
    dress(block.node, ends);
    shown.push(block);
    place.append(block.node);
  }
}

/** Gives code its head and colours, tables room to scroll, and links a window of their own. */
function dress(place, ends) {
  for (const link of place.querySelectorAll("a[href]")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
  for (const table of place.querySelectorAll("table")) {
    const box = el("div", { class: "table", tabIndex: 0, role: "region", ariaLabel: "Table" });
    table.replaceWith(box);
    box.append(table);
  }
  for (const pre of place.querySelectorAll("pre")) {
    const code = pre.firstElementChild ?? pre, said = /language-([\w+#-]+)/.exec(code.className)?.[1].toLowerCase() ?? "";
    code.textContent = code.textContent.trimEnd();
    const button = el("button", { type: "button", onclick: () => copy(code.textContent) }, "Copy");
    const figure = el("figure", {}, el("figcaption", {}, said || "text", button));
    pre.replaceWith(figure);
    pre.tabIndex = 0; // it scrolls
    figure.append(pre);
    if (ends && code.textContent.length < 50_000) colour(code, NAMES.get(said) ?? said);
  }
}

async function colour(code, language) {
  if (!LANGUAGES.includes(language)) return;
  const grammar = await import(`./vendor/languages/${language}.min.js`);
  if (!hljs.getLanguage(language)) hljs.registerLanguage(language, grammar.default);
  code.replaceChildren(clean(hljs.highlight(code.textContent, { language, ignoreIllegals: true }).value));
}
