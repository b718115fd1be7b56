/** Answers: what the events of a stream tell of one, and the same question beside others. */

import { events, ServerError } from "./api.js";

const OTHERS = 7;

/** What a message is that a model is to answer: with the settings as they are, and a seed of its own. */
export function blank(model, settings) {
  const seed = settings.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
  return { model, seed, asked: { ...settings }, reasoning: "", calls: [], ids: [], tokens: [], finish: null };
}

/** Streams an answer into its message, whatever becomes of it. */
export async function stream(answer, [path, body], signal, changed) {
  const before = answer.ids.length;
  let first = 0;
  answer.finish = answer.error = null;
  try {
    for await (const event of events([path, body], signal)) {
      take(answer, event);
      if (answer.ids.length > before) first ||= performance.now();
      answer.seconds = first && (performance.now() - first) / 1000;
      changed();
    }
  } catch (error) {
    if (body.logprobs && /^(?:top_)?logprobs$/.test(error.field)) { // the server gives none (--max-logprobs)
      return stream(answer, [path, { ...body, logprobs: undefined, top_logprobs: undefined }], signal, changed);
    }
    answer.finish = error.name === "AbortError" ? "stopped" : "error";
    const said = error instanceof ServerError ? error.message : `The server can't be reached (${error.message})`;
    answer.error = answer.finish === "stopped" ? null : said;
  }
}

/** Adds what an event tells. Those of conversations and of continued texts differ in where their text is. */
function take(answer, event) {
  answer.prompt = event.prompt_token_ids ?? answer.prompt;
  answer.usage = event.usage ?? answer.usage;
  answer.timings = event.oxillama?.timings[0] ?? answer.timings;
  for (const choice of event.choices) {
    const said = choice.delta ?? { content: choice.text }, start = answer.content.length;
    answer.reasoning += said.reasoning_content ?? "";
    answer.content += said.content ?? "";
    for (const { index, id, function: piece } of said.tool_calls ?? []) {
      answer.calls[index] ??= { id, name: piece.name, arguments: "" };
      answer.calls[index].arguments += piece.arguments ?? "";
    }
    answer.ids.push(...(choice.token_ids ?? []));
    answer.tokens.push(...placed(choice.logprobs?.content ?? [], start, answer.content.length));
    answer.finish = choice.finish_reason ?? answer.finish;
  }
}

/** Tokens, each with the place at which its text begins; null of those that no text is shown of. */
function placed(entries, start, end) {
  const short = ({ id, token, logprob }) => ({ id, text: token, logprob });
  const found = entries.map((one) => ({ ...short(one), top: one.top_logprobs.map(short), place: null }));
  let place = end;
  for (const one of end > start ? found.toReversed() : []) one.place = place = Math.max(start, place - one.text.length);
  return found;
}

/** Whether an answer can begin anew behind each of its tokens: not one that a schema holds, which can't hold the rest. */
export function canFork(answer) {
  return Boolean(answer.prompt && !answer.asked.held && answer.finish) && answer.tokens.length === answer.ids.length;
}

/** The beginning of an answer up to a token, with another one in its place. */
export function forked(answer, index, other) {
  const token = answer.tokens[index], { model, asked, prompt, reasoning } = answer;
  const content = answer.content.slice(0, token.place) + (token.place ? other.text : other.text.trimStart());
  const tokens = [...answer.tokens.slice(0, index), { ...token, ...other }];
  const ids = tokens.map((one) => one.id);
  return { content, tokens, ids, model, asked, prompt, reasoning, begun: index + 1, start: content.length };
}

/** Asks for an answer again while others are computed beside it. Gives these, and the first token that differs. */
export async function askBeside(answer, [path, body], signal, changed) {
  const own = answer.ids.slice(answer.begun), found = Array.from({ length: OTHERS + 1 }, () => ({ text: "", ids: [] }));
  const most = answer.finish === "stopped" ? { max_tokens: own.length } : {};
  const wanted = { ...body, ...most, n: OTHERS + 1, logprobs: undefined, top_logprobs: undefined };
  for await (const event of events([path, wanted], signal)) {
    for (const { index, delta, text, token_ids: ids } of event.choices) {
      found[index].text += delta?.content ?? text ?? "";
      found[index].ids.push(...(ids ?? []));
    }
    changed(found.reduce((n, one) => n + one.ids.length, 0));
  }
  const [again, ...others] = found, n = Math.max(again.ids.length, own.length);
  const differs = [...Array(n).keys()].find((i) => again.ids[i] !== own[i]) ?? null;
  return { n: own.length, differs, others };
}
