// The openai SDK for Node, as its users call it.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  BIASES, BOOKING_SCHEMA, EITHER_CITY, KEY, MODEL, PIXEL, SPENT_KEY, URL, WEATHER, isBiased, reachTheLimit, runAll, same, test, truth, user,
} from "./cases.mjs";

const client = new OpenAI({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const NUMBERS = ["one", "two", "three", "four", "five", "six"];
const ask = (content, options = {}, request = undefined) =>
  client.chat.completions.create({ model: MODEL, messages: user(content), ...options }, request);
const text = async (content, options) => (await ask(content, options)).choices[0].message.content;
const callsOf = (message) =>
  (message.tool_calls ?? []).map((call) => [call.function.name, JSON.parse(call.function.arguments)]);

async function gather(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("plain answer", async () => {
  const answer = await ask("Say hello.");
  same([answer.choices[0].message.content, answer.choices[0].finish_reason], ["Hello, nice to see you.", "stop"]);
});
test("streamed answer", async () => {
  const chunks = await gather(await ask("Say hello.", { stream: true }));
  same(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "Hello, nice to see you.");
});
test("usage in the stream", async () => {
  const chunks = await gather(await ask("Say hello.", { stream: true, stream_options: { include_usage: true } }));
  truth(chunks.at(-1).usage.completion_tokens > 0, "the last chunk has the usage");
});
test("system message", async () => {
  const messages = [{ role: "system", content: "Answer in capitals." }, ...user("Say hello.")];
  same(await text("", { messages }), "HELLO, NICE TO SEE YOU.");
});
test("several turns", async () => {
  const messages = [...user("My name is Anna."), { role: "assistant", content: "Hello Anna." }, ...user("What is my name?")];
  same(await text("", { messages }), "Your name is Anna.");
});
test("tools: auto", async () => {
  const { message, finish_reason } = (await ask("What is the weather in Paris?", { tools: [WEATHER] })).choices[0];
  same([callsOf(message), finish_reason], [[["get_weather", { city: "Paris" }]], "tool_calls"]);
});
test("tools: none", async () => {
  const { message } = (await ask("What is the weather in Paris?", { tools: [WEATHER], tool_choice: "none" })).choices[0];
  same([callsOf(message), message.content], [[], "I cannot see the weather."]);
});
test("tools: required", async () => {
  const { choices } = await ask("Do as you like.", { tools: [EITHER_CITY], tool_choice: "required", n: 6 }); // half would be words
  for (const { message } of choices) {
    const called = callsOf(message);
    truth(called.length && called.every(([, { city }]) => ["Paris", "Rome"].includes(city)), JSON.stringify(message));
  }
});
test("tools: named", async () => {
  const tool_choice = { type: "function", function: { name: "get_weather" } };
  const { message } = (await ask("What is the weather in Paris?", { tools: [WEATHER], tool_choice })).choices[0];
  same(callsOf(message), [["get_weather", { city: "Paris" }]]);
});
test("tools: several calls", async () => {
  const { message } = (await ask("What is the weather in Paris and in Rome?", { tools: [WEATHER] })).choices[0];
  same(callsOf(message), [["get_weather", { city: "Paris" }], ["get_weather", { city: "Rome" }]]);
});
test("tools: result sent back (runTools)", async () => {
  const runner = client.chat.completions.runTools({
    model: MODEL,
    messages: user("What is the weather in Paris?"),
    tools: [{ ...WEATHER, function: { ...WEATHER.function, parse: JSON.parse, function: async () => '{"degrees": 21}' } }],
  });
  same(await runner.finalContent(), "It is 21 degrees in Paris.");
});
test("tools: streamed deltas", async () => {
  const stream = client.chat.completions.stream({
    model: MODEL, messages: user("What is the weather in Paris and in Rome?"), tools: [WEATHER],
  });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  same(callsOf(message), [["get_weather", { city: "Paris" }], ["get_weather", { city: "Rome" }]]);
});
test("json_object", async () => {
  const { choices } = await ask("How are you?", { response_format: { type: "json_object" }, n: 6 }); // half would be words
  for (const { message } of choices) truth(Object.keys(JSON.parse(message.content)), message.content);
});
test("json_schema", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "booking", schema: BOOKING_SCHEMA, strict: true } };
  same(JSON.parse(await text("Book a table for four, Anna.", { response_format })), { name: "Anna", party: 4 });
});
test("parse() into a zod type", async () => {
  const answer = await client.chat.completions.parse({
    model: MODEL,
    messages: user("Book a table for four, Anna."),
    response_format: zodResponseFormat(z.object({ name: z.string(), party: z.number().int() }), "booking"),
  });
  same(answer.choices[0].message.parsed, { name: "Anna", party: 4 });
});
test("logprobs and top_logprobs", async () => {
  const { content } = (await ask("Roll a die.", { logprobs: true, top_logprobs: 3 })).choices[0].logprobs;
  truth(content.every((token) => token.top_logprobs.length === 3), "three for each token");
});
test("n=2", async () => {
  const answer = await ask("Roll a die.", { n: 2 });
  truth(answer.choices.length === 2 && answer.choices.every((one) => NUMBERS.includes(one.message.content)), "two answers");
});
test("seed", async () => {
  const roll = (seed) => text("Roll ten dice.", { seed, temperature: 1.0 });
  for (const seed of [1, 2, 3]) same(await roll(seed), await roll(seed));
});
test("logit_bias", async () => {
  isBiased(...(await Promise.all(BIASES.map((logit_bias) => text("Say hello.", { logit_bias, max_tokens: 3 })))));
});
test("frequency and presence penalty", async () => {
  const rolled = (await text("Roll ten dice.", { frequency_penalty: 2.0, presence_penalty: 2.0 })).split(" ");
  same(new Set(rolled.slice(1, 7)).size, 6); // no side again before each was there
});
test("stop", async () => same(await text("Count.", { stop: [" three"] }), "one two"));
test("max_tokens", async () => same((await ask("Count.", { max_tokens: 2 })).choices[0].finish_reason, "length"));
test("legacy completions", async () => {
  const answer = await client.completions.create({ model: MODEL, prompt: "one two three", max_tokens: 4 });
  same([answer.object, answer.choices[0].text.slice(0, 5), answer.usage.completion_tokens], ["text_completion", " four", 4]);
});
test("models: list and retrieve", async () => {
  const found = [];
  for await (const model of client.models.list()) found.push(model.id);
  truth(found.includes(MODEL), "the model is listed");
  same((await client.models.retrieve(MODEL)).id, MODEL);
});
test("stored completions: list and retrieve", async () => {
  const kept = await ask("Say hello.", { store: true, metadata: { page: "clients" } });
  let found = null;
  for (let turn = 0; !found; turn++) {
    try {
      found = await client.chat.completions.retrieve(kept.id);
    } catch (error) {
      if (!(error instanceof OpenAI.NotFoundError) || turn === 100) throw error; // it takes a moment to arrive
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  }
  same(found.choices[0].message.content, "Hello, nice to see you.");
  const listed = await client.chat.completions.list({ limit: 20, order: "desc" });
  truth(listed.data.some((one) => one.id === kept.id), "it is listed");
});
test("metadata, store, user", async () => {
  await ask("Say hello.", { metadata: { session_id: "s-2" }, store: true, user: "anna", safety_identifier: "a" });
});
test("reasoning content", async () => {
  const { message } = (await ask("Think: two and two?")).choices[0];
  same([message.content, (message.reasoning_content ?? message.reasoning ?? "").trim()], ["Four.", "Two and two make four."]);
});
test("image in a message", () => ask([{ type: "text", text: "What is this?" }, { type: "image_url", image_url: { url: PIXEL } }]));
test("unknown field", () => ask("Say hello.", { max_token: 3 }));
test("unknown model", () => ask("Say hello.", { model: "gpt-none" }));
test("wrong key", () => client.withOptions({ apiKey: "sk-wrong" }).models.list());
const flat = { type: "function", ...WEATHER.function, strict: false };
const respond = (input, options = {}) => client.responses.create({ model: MODEL, input, ...options });
const flatCallsOf = ({ output }) =>
  output.filter(({ type }) => type === "function_call").map((item) => [item.name, JSON.parse(item.arguments)]);
const resultsOf = ({ output }) =>
  output
    .filter(({ type }) => type === "function_call")
    .map(({ call_id }) => ({ type: "function_call_output", call_id, output: '{"degrees": 21}' }));

test("responses API", async () => {
  const answer = await respond("Say hello.");
  same([answer.output_text, answer.status], ["Hello, nice to see you.", "completed"]);
});
test("responses API: streamed", async () => {
  const stream = client.responses.stream({ model: MODEL, input: "Say hello." });
  let said = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") said += event.delta;
  same([said, (await stream.finalResponse()).output_text], ["Hello, nice to see you.", "Hello, nice to see you."]);
});
test("responses API: instructions", async () =>
  same((await respond("Say hello.", { instructions: "Answer in capitals." })).output_text, "HELLO, NICE TO SEE YOU."));
test("responses API: tools, results sent back", async () => {
  const asked = user("What is the weather in Paris?");
  const first = await respond(asked, { tools: [flat] });
  same(flatCallsOf(first), [["get_weather", { city: "Paris" }]]);
  same((await respond([...asked, ...first.output, ...resultsOf(first)], { tools: [flat] })).output_text, "It is 21 degrees in Paris.");
});
test("responses API: several calls, streamed", async () => {
  const stream = client.responses.stream({ model: MODEL, input: "What is the weather in Paris and in Rome?", tools: [flat] });
  same(flatCallsOf(await stream.finalResponse()), [["get_weather", { city: "Paris" }], ["get_weather", { city: "Rome" }]]);
});
test("responses API: previous_response_id", async () => {
  const first = await respond("What is the weather in Paris?", { tools: [flat] });
  const second = await respond(resultsOf(first), { tools: [flat], previous_response_id: first.id });
  same([second.output_text, second.previous_response_id], ["It is 21 degrees in Paris.", first.id]);
});
test("responses API: parse() into a zod type", async () => {
  const shape = z.object({ name: z.string(), party: z.number().int() });
  const text = { format: zodTextFormat(shape, "booking") };
  const answer = await client.responses.parse({ model: MODEL, input: "Book a table for four, Anna.", text });
  same(answer.output_parsed, { name: "Anna", party: 4 });
});
test("responses API: reasoning items", async () => {
  const { output, output_text } = await respond("Think: two and two?");
  same([output[0].content[0].text.trim(), output_text], ["Two and two make four.", "Four."]);
});
test("responses API: max_output_tokens", async () => {
  const { status, incomplete_details } = await respond("Count.", { max_output_tokens: 2 });
  same([status, incomplete_details.reason], ["incomplete", "max_output_tokens"]);
});
test("responses API: retrieve, input items", async () => {
  const answer = await respond("Say hello.", { store: true });
  same((await client.responses.retrieve(answer.id)).output_text, answer.output_text);
  const [item] = (await client.responses.inputItems.list(answer.id)).data;
  same(item.content[0].text, "Say hello.");
});
test("responses API: feedback by its id", async () => {
  const answer = await respond("Say hello.");
  const { id } = await client.post("/feedback", { body: { name: "accepted", value: true, completion_id: answer.id } });
  same((await client.get(`/feedback/${id}`)).completion_id, answer.completion_id);
});
test("responses API: hosted tool", () => respond("Say hello.", { tools: [{ type: "web_search" }] }));
test("idempotency key", async () => {
  const request = { headers: { "Idempotency-Key": "openai-node" } };
  same((await ask("Roll a die.", {}, request)).id, (await ask("Roll a die.", {}, request)).id);
});
test("a stream that the client leaves", async () => {
  const stream = await ask("Count.", { stream: true });
  for await (const chunk of stream) if (chunk) break;
  same(await text("Say hello."), "Hello, nice to see you.");
});
test("429, then a retry by the client", async () => {
  const spent = client.withOptions({ apiKey: SPENT_KEY });
  const asked = { model: MODEL, messages: user("Say hello."), max_tokens: 1 };
  await reachTheLimit(() => spent.chat.completions.create(asked), (error) => error instanceof OpenAI.RateLimitError);
  await spent.chat.completions.create(asked, { maxRetries: 4 });
});

await runAll((error) =>
  error instanceof OpenAI.APIError && error.status
    ? { status: error.status, code: error.code, param: error.param, message: error.message }
    : null,
);
