// The Vercel AI SDK over @ai-sdk/openai-compatible and @ai-sdk/openai, as its users call it. MILLRACE_PROVIDER says which.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, RetryError, generateObject, generateText, jsonSchema, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { BOOKING_SCHEMA, KEY, MODEL, PIXEL, SPENT_KEY, URL, reachTheLimit, runAll, same, test, truth } from "./cases.mjs";

const compatible = process.env.MILLRACE_PROVIDER === "openai-compatible";
const modelFor = (apiKey, name = MODEL) =>
  compatible
    ? createOpenAICompatible({ name: "millrace", baseURL: URL, apiKey, includeUsage: true, supportsStructuredOutputs: true })(name)
    : createOpenAI({ baseURL: URL, apiKey }).chat(name);
const model = modelFor(KEY);
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => ({ Paris: 21, Rome: 24 })[city],
});
const asked = { get_weather: tool({ inputSchema: z.object({ city: z.string() }) }) };
const booking = z.object({ name: z.string(), party: z.number().int() });
const ask = (prompt, options = {}) => generateText({ model, prompt, maxRetries: 0, ...options });
const callsOf = (answer) => answer.toolCalls.map((call) => [call.toolName, call.input]);

test("plain answer", async () => same((await ask("Say hello.")).text, "Hello, nice to see you."));
test("streamed answer", async () => {
  let text = "";
  for await (const piece of streamText({ model, prompt: "Say hello.", maxRetries: 0 }).textStream) text += piece;
  same(text, "Hello, nice to see you.");
});
test("usage in the stream", async () => {
  const stream = streamText({ model, prompt: "Say hello.", maxRetries: 0 });
  await stream.consumeStream();
  truth((await stream.usage).outputTokens > 0, "the stream has its usage");
});
test("system message", async () => same((await ask("Say hello.", { system: "Answer in capitals." })).text, "HELLO, NICE TO SEE YOU."));
test("several turns", async () => {
  const messages = [
    { role: "user", content: "My name is Anna." },
    { role: "assistant", content: "Hello Anna." },
    { role: "user", content: "What is my name?" },
  ];
  same((await generateText({ model, messages, maxRetries: 0 })).text, "Your name is Anna.");
});
test("tools: auto", async () =>
  same(callsOf(await ask("What is the weather in Paris?", { tools: asked })), [["get_weather", { city: "Paris" }]]));
test("tools: none", async () => {
  const answer = await ask("What is the weather in Paris?", { tools: asked, toolChoice: "none" });
  same([callsOf(answer), answer.text], [[], "I cannot see the weather."]);
});
test("tools: required", async () => {
  const either = { get_weather: tool({ inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }) }) };
  for (let turn = 0; turn < 6; turn++) { // half would be words
    const called = callsOf(await ask("Do as you like.", { tools: either, toolChoice: "required" }));
    truth(called.length && called.every(([, { city }]) => ["Paris", "Rome"].includes(city)), JSON.stringify(called));
  }
});
test("tools: named", async () => {
  const toolChoice = { type: "tool", toolName: "get_weather" };
  same(callsOf(await ask("What is the weather in Paris?", { tools: asked, toolChoice })), [["get_weather", { city: "Paris" }]]);
});
test("tools: several calls", async () =>
  same(callsOf(await ask("What is the weather in Paris and in Rome?", { tools: asked })), [
    ["get_weather", { city: "Paris" }],
    ["get_weather", { city: "Rome" }],
  ]));
test("tools: result sent back (steps)", async () => {
  const answer = await ask("What is the weather in Paris?", { tools: { get_weather: weather }, stopWhen: stepCountIs(3) });
  same([answer.text, answer.steps.length], ["It is 21 degrees in Paris.", 2]);
});
test("tools: streamed deltas", async () => {
  const stream = streamText({ model, prompt: "What is the weather in Paris?", tools: { get_weather: weather }, stopWhen: stepCountIs(3), maxRetries: 0 });
  const kinds = new Set();
  for await (const part of stream.fullStream) {
    if (part.type === "error") throw part.error;
    kinds.add(part.type);
  }
  truth(kinds.has("tool-call") && kinds.has("tool-result"), [...kinds].join());
  same(await stream.text, "It is 21 degrees in Paris.");
});
test("generateObject", async () =>
  same((await generateObject({ model, schema: booking, prompt: "Book a table for four, Anna.", maxRetries: 0 })).object, { name: "Anna", party: 4 }));
test("generateObject with a JSON schema", async () =>
  same(
    (await generateObject({ model, schema: jsonSchema(BOOKING_SCHEMA), prompt: "Book a table for four, Anna.", maxRetries: 0 })).object,
    { name: "Anna", party: 4 },
  ));
test("streamObject", async () => {
  const stream = streamObject({ model, schema: booking, prompt: "Book a table for four, Anna.", maxRetries: 0 });
  for await (const part of stream.fullStream) if (part.type === "error") throw part.error;
  same(await stream.object, { name: "Anna", party: 4 });
});
test("seed", async () => {
  const roll = async (seed) => (await ask("Roll ten dice.", { seed, temperature: 1.0 })).text;
  for (const seed of [1, 2, 3]) same(await roll(seed), await roll(seed));
});
test("frequency and presence penalty", async () => {
  const rolled = (await ask("Roll ten dice.", { frequencyPenalty: 2, presencePenalty: 2 })).text.split(" ");
  same(new Set(rolled.slice(1, 7)).size, 6); // no side again before each was there
});
test("stop", async () => same((await ask("Count.", { stopSequences: [" three"] })).text.trim(), "one two"));
test("max_tokens", async () => same((await ask("Count.", { maxOutputTokens: 2 })).finishReason, "length"));
test("metadata, store, user", async () => {
  const options = { user: "anna", store: true, metadata: { session_id: "s-3" } };
  await ask("Say hello.", { providerOptions: { millrace: options, openai: options } });
});
const reasoning = compatible ? "reasoning content" : "reasoning kept out of the content (the client has no field for it)";
test(reasoning, async () => {
  const answer = await ask("Think: two and two?");
  same([answer.text.trim(), (answer.reasoningText ?? "").trim()], ["Four.", compatible ? "Two and two make four." : ""]);
});
test("image in a message", async () => {
  const content = [{ type: "text", text: "What is this?" }, { type: "image", image: PIXEL }];
  await generateText({ model, messages: [{ role: "user", content }], maxRetries: 0 });
});
test("unknown field", async () => {
  if (!compatible) throw Object.assign(new Error("its provider sends only fields that it knows"), { name: "NotSent" });
  await ask("Say hello.", { providerOptions: { millrace: { max_token: 3 } } });
});
test("unknown model", () => generateText({ model: modelFor(KEY, "gpt-none"), prompt: "Say hello.", maxRetries: 0 }));
test("wrong key", () => generateText({ model: modelFor("sk-wrong"), prompt: "Say hello.", maxRetries: 0 }));
const responding = (run) => async () => {
  if (compatible) throw Object.assign(new Error("its provider has none"), { name: "NotSent" });
  await run(createOpenAI({ baseURL: URL, apiKey: KEY })(MODEL));
};
test("responses API (the provider's default)", responding(async (model) =>
  same((await generateText({ model, prompt: "Say hello.", maxRetries: 0 })).text, "Hello, nice to see you.")));
test("responses API: streamed", responding(async (model) => {
  let text = "";
  for await (const piece of streamText({ model, prompt: "Say hello.", maxRetries: 0 }).textStream) text += piece;
  same(text, "Hello, nice to see you.");
}));
test("responses API: tools, results sent back as references (steps)", responding(async (model) => {
  const prompt = "What is the weather in Paris?";
  const answer = await generateText({ model, prompt, tools: { get_weather: weather }, stopWhen: stepCountIs(3), maxRetries: 0 });
  same([answer.text, answer.steps.length], ["It is 21 degrees in Paris.", 2]);
}));
test("responses API: tools, streamed", responding(async (model) => {
  const prompt = "What is the weather in Paris and in Rome?";
  const stream = streamText({ model, prompt, tools: { get_weather: weather }, stopWhen: stepCountIs(3), maxRetries: 0 });
  for await (const part of stream.fullStream) if (part.type === "error") throw part.error;
  same([await stream.text, (await stream.steps).length], ["It is 21 degrees in Paris and 24 in Rome.", 2]);
}));
test("responses API: generateObject", responding(async (model) =>
  same((await generateObject({ model, schema: booking, prompt: "Book a table for four, Anna.", maxRetries: 0 })).object, { name: "Anna", party: 4 })));
test("responses API: reasoning sent back", responding(async (model) => {
  const messages = [{ role: "user", content: "Think: two and two?" }];
  const answer = await generateText({ model, messages, maxRetries: 0 });
  same(answer.text, "Four.");
  await generateText({ model, messages: [...messages, ...answer.response.messages, { role: "user", content: "Say hello." }], maxRetries: 0 });
}));
test("a stream that the client leaves", async () => {
  const leaving = new AbortController();
  const stream = streamText({ model, prompt: "Count.", abortSignal: leaving.signal, maxRetries: 0 });
  for await (const _ of stream.textStream) {
    leaving.abort();
    break;
  }
  same((await ask("Say hello.")).text, "Hello, nice to see you.");
});
test("429, then a retry by the client", async () => {
  const spent = modelFor(SPENT_KEY);
  await reachTheLimit(() => generateText({ model: spent, prompt: "Say hello.", maxOutputTokens: 1, maxRetries: 0 }), (error) => error.statusCode === 429);
  await generateText({ model: spent, prompt: "Say hello.", maxOutputTokens: 1, maxRetries: 3 });
});

await runAll((thrown) => {
  if (thrown?.name === "NotSent") return { status: "not sent", message: thrown.message };
  const error = RetryError.isInstance(thrown) ? thrown.lastError : thrown;
  if (!APICallError.isInstance(error) || !error.statusCode) return null;
  const told = (error.data ?? JSON.parse(error.responseBody || "{}")).error ?? {};
  return { status: error.statusCode, code: told.code, param: told.param, message: error.message };
});
