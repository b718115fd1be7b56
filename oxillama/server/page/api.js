/** Calls of the server, and what requests say. */

import { at, confirmed } from "./dom.js";

const KEY = "oxillama-key"; // in the session's storage: gone with the tab
const NUMBERS = ["temperature", "top_p", "min_p", "top_k", "repetition_penalty"];
const BESIDE = 5; // likeliest tokens that are shown for each
let asking = null; // for a key, in the dialog that is open

/** An answer of the server that is an error. field: the one that it is about. */
export class ServerError extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answered ${status}`);
    Object.assign(this, { status, field: error?.param });
  }
}

/** A response of the server. Asks for a key where one is needed. */
async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(options.body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  if (response.status === 401 && (await (asking ??= keyIsGiven()))) return ask(path, options);
  throw new ServerError(response.status, (await response.json().catch(() => null))?.error);
}

async function keyIsGiven() {
  at("key").value = "";
  const given = await confirmed(at("keys"));
  if (given) sessionStorage.setItem(KEY, at("key").value.trim());
  asking = null;
  return given;
}

/** Models that answer conversations, with what is known of them. */
export async function listModels() {
  const { data } = await (await ask("v1/models")).json();
  const chats = data.filter((model) => model.oxillama.capabilities?.includes("chat") ?? true);
  return chats.map((model) => ({ id: model.id, ...model.oxillama }));
}

/** The events of a stream. Throws ServerError for one that is an error, and for a stream without its end. */
export async function* events([path, body], signal) {
  const response = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) throw new ServerError(0, { message: "The connection ended before the answer did" });
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block === "data: [DONE]") return;
      const event = block.startsWith("data: ") ? JSON.parse(block.slice(6)) : null;
      if (event?.error) throw new ServerError(0, event.error);
      if (event) yield event;
    }
  }
}

/** Path and body of the request that a new answer is the answer of. messages: the conversation before it. */
export function chatRequest(answer, messages) {
  const { asked } = answer, body = { ...fields(answer), messages };
  if (asked.probabilities) Object.assign(body, { logprobs: true, top_logprobs: BESIDE });
  if (asked.thinking) body.thinking = { type: asked.thinking };
  if (asked.tools) body.tools = JSON.parse(asked.tools);
  if (asked.held) body.response_format = { type: "json_schema", json_schema: { schema: JSON.parse(asked.schema) } };
  return ["v1/chat/completions", body];
}

/** Path and body of the request that goes on behind the first tokens of an answer, whatever their text is. */
export function tokensRequest(answer, n) {
  const body = { ...fields(answer), prompt: [...answer.prompt, ...answer.ids.slice(0, n)] };
  return ["v1/completions", answer.asked.probabilities ? { ...body, logprobs: BESIDE } : body];
}

/** The fields that the settings of an answer make, of either path. */
function fields({ model, seed, asked }) {
  const found = { model, seed, max_tokens: asked.max_tokens ?? -1, stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) if (asked[name] !== undefined) found[name] = asked[name];
  return { ...found, return_token_ids: true, return_timings: true };
}
