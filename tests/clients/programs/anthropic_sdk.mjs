// Anthropic's SDK for Node, as its users call it.
import Anthropic from "@anthropic-ai/sdk";
import { BOOKING_SCHEMA, EITHER_CITY, KEY, MODEL, PARAMETERS, SPENT_KEY, URL, reachTheLimit, runAll, same, test, truth, user } from "./cases.mjs";

const client = new Anthropic({ baseURL: URL.replace(/\/v1$/, ""), apiKey: KEY, maxRetries: 0 });
const WEATHER = { name: "get_weather", description: "The weather in a city.", input_schema: PARAMETERS };
const EITHER = { name: "get_weather", input_schema: EITHER_CITY.function.parameters };
const PIXEL = { type: "base64", media_type: "image/png", data: "iVBORw0KGgo=" };
const request = (content, options = {}) => ({
  model: MODEL,
  max_tokens: 200,
  messages: Array.isArray(content) && content[0].role ? content : user(content),
  ...options,
});
const ask = (content, options, sent) => client.messages.create(request(content, options), sent);
const text = async (content, options) => (await ask(content, options)).content[0].text;
const usesOf = (message) => message.content.filter((one) => one.type === "tool_use").map((one) => [one.name, one.input]);

test("plain answer", async () => {
  const answer = await ask("Say hello.");
  same(answer.content, [{ type: "text", text: "Hello, nice to see you." }]);
  same([answer.type, answer.stop_reason, answer.stop_sequence], ["message", "end_turn", null]);
  same(answer._request_id, answer.id);
});
test("streamed answer", async () => {
  const events = [];
  for await (const event of await ask("Say hello.", { stream: true })) events.push(event);
  same(events.map((event) => event.delta?.text ?? "").join(""), "Hello, nice to see you.");
  same([events[0].type, ...events.slice(-2).map((event) => event.type)], ["message_start", "message_delta", "message_stop"]);
});
test("messages.stream()", async () => {
  const stream = client.messages.stream(request("Say hello."));
  same(await stream.finalText(), "Hello, nice to see you.");
  same((await stream.finalMessage()).stop_reason, "end_turn");
});
test("system", async () => {
  same(await text("Say hello.", { system: "Answer in capitals." }), "HELLO, NICE TO SEE YOU.");
  const system = [{ type: "text", text: "Answer in capitals.", cache_control: { type: "ephemeral" } }];
  same(await text("Say hello.", { system }), "HELLO, NICE TO SEE YOU.");
});
test("several turns", async () => {
  const messages = [...user("My name is Anna."), { role: "assistant", content: "Hello Anna." }, ...user("What is my name?")];
  same(await text(messages), "Your name is Anna.");
});
test("tools: auto", async () => {
  const answer = await ask("What is the weather in Paris?", { tools: [WEATHER] });
  same([usesOf(answer), answer.stop_reason], [[["get_weather", { city: "Paris" }]], "tool_use"]);
});
test("tools: none", async () => {
  same(await text("What is the weather in Paris?", { tools: [WEATHER], tool_choice: { type: "none" } }), "I cannot see the weather.");
});
test("tools: any", async () => {
  for (let turn = 0; turn < 4; turn++) { // half would be words
    const uses = usesOf(await ask("Do as you like.", { tools: [EITHER], tool_choice: { type: "any" } }));
    truth(uses.length && uses.every(([, { city }]) => ["Paris", "Rome"].includes(city)), JSON.stringify(uses));
  }
});
test("tools: named", async () => {
  const tool_choice = { type: "tool", name: "get_weather" };
  same(usesOf(await ask("What is the weather in Paris?", { tools: [WEATHER], tool_choice })), [["get_weather", { city: "Paris" }]]);
});
test("tools: several calls", async () => {
  const answer = await ask("What is the weather in Paris and in Rome?", { tools: [WEATHER] });
  same(usesOf(answer), [["get_weather", { city: "Paris" }], ["get_weather", { city: "Rome" }]]);
});
test("tools: disable_parallel_tool_use", async () => {
  const tool_choice = { type: "auto", disable_parallel_tool_use: true };
  same(usesOf(await ask("What is the weather in Paris and in Rome?", { tools: [WEATHER], tool_choice })).length, 1);
});
test("tools: result sent back", async () => {
  const messages = user("What is the weather in Paris?");
  const { content } = await ask(messages, { tools: [WEATHER] });
  const result = { type: "tool_result", tool_use_id: content.at(-1).id, content: '{"degrees": 21}' };
  const more = [{ role: "assistant", content }, { role: "user", content: [result] }];
  same(await text([...messages, ...more], { tools: [WEATHER] }), "It is 21 degrees in Paris.");
});
test("tools: toolRunner()", async () => {
  const tool = { ...WEATHER, type: "custom", run: async () => '{"degrees": 21}', parse: (input) => input };
  const runner = client.beta.messages.toolRunner(request("What is the weather in Paris?", { tools: [tool] }));
  same((await runner.runUntilDone()).content[0].text, "It is 21 degrees in Paris.");
});
test("tools: streamed deltas", async () => {
  const stream = client.messages.stream(request("What is the weather in Paris and in Rome?", { tools: [WEATHER] }));
  let parts = 0;
  stream.on("inputJson", () => parts++);
  same(usesOf(await stream.finalMessage()), [["get_weather", { city: "Paris" }], ["get_weather", { city: "Rome" }]]);
  truth(parts > 0, "parts of arguments");
});
test("output_config: json_schema", async () => {
  const output_config = { format: { type: "json_schema", schema: BOOKING_SCHEMA } };
  same(JSON.parse(await text("Book a table for four, Anna.", { output_config })), { name: "Anna", party: 4 });
});
test("thinking", async () => {
  const options = { thinking: { type: "enabled", budget_tokens: 1024 }, max_tokens: 1100 };
  const [thought, told] = (await ask("Think: two and two?", options)).content;
  same([thought.type, thought.thinking.trim(), told.text], ["thinking", "Two and two make four.", "Four."]);
});
test("thinking: streamed, and sent back", async () => {
  const { content } = await client.messages.stream(request("Think: two and two?")).finalMessage();
  same(content.map((one) => one.type), ["thinking", "text"]);
  await ask([...user("Think: two and two?"), { role: "assistant", content }, ...user("Say hello.")]);
});
test("stop_sequences", async () => {
  const answer = await ask("Count.", { stop_sequences: [" three"] });
  same([answer.content[0].text, answer.stop_reason, answer.stop_sequence], ["one two", "stop_sequence", " three"]);
});
test("max_tokens", async () => same((await ask("Count.", { max_tokens: 2 })).stop_reason, "max_tokens"));
test("countTokens()", async () => {
  const asked = { tools: [WEATHER], system: "Be brief." };
  const { max_tokens, ...counted } = request("What is the weather in Paris?", asked);
  truth(max_tokens, "it is not sent");
  const { usage } = await ask("What is the weather in Paris?", asked);
  // An earlier client may have asked the same: what the cache held is told apart from what was read anew.
  const whole = usage.input_tokens + (usage.cache_read_input_tokens ?? 0);
  same((await client.messages.countTokens(counted)).input_tokens, whole);
});
test("models: list and retrieve", async () => {
  const found = [];
  for await (const model of client.models.list()) found.push(model.id);
  truth(found.includes(MODEL), "the model is listed");
  same((await client.models.retrieve(MODEL)).id, MODEL);
});
test("metadata, and a signal about the answer", async () => {
  const { id } = await ask("Say hello.", { metadata: { user_id: "anna", session_id: "s-1" } }, { headers: { "x-millrace-task": MODEL } });
  same((await client.post("/v1/feedback", { body: { id, completion_id: id, name: "accepted", value: true } })).id, id);
});
test("image in a message", () => ask([{ type: "text", text: "What is this?" }, { type: "image", source: PIXEL }]));
test("tool of the server", () => ask("Say hello.", { tools: [{ type: "web_search_20250305", name: "web_search", max_uses: 3 }] }));
test("beginning of an answer", () => ask([...user("Say hello."), { role: "assistant", content: "Hel" }]));
test("unknown field", () => ask("Say hello.", { max_token: 3 }));
test("unknown model", () => ask("Say hello.", { model: "claude-none" }));
test("wrong key", () => client.withOptions({ apiKey: "sk-wrong" }).models.list());
test("idempotency key", async () => {
  const sent = { headers: { "Idempotency-Key": "anthropic-node" } };
  same((await ask("Roll a die.", {}, sent)).id, (await ask("Roll a die.", {}, sent)).id);
});
test("a stream that the client leaves", async () => {
  for await (const event of await ask("Count.", { stream: true })) if (event) break;
  same(await text("Say hello."), "Hello, nice to see you.");
});
test("429, then a retry by the client", async () => {
  const spent = client.withOptions({ apiKey: SPENT_KEY });
  const asked = request("Say hello.", { max_tokens: 1 });
  await reachTheLimit(() => spent.messages.create(asked), (error) => error instanceof Anthropic.RateLimitError);
  await spent.messages.create(asked, { maxRetries: 4 });
});

await runAll((error) => {
  const told = error instanceof Anthropic.APIError ? error.error?.error : null;
  return told && error.status ? { status: error.status, code: told.code, param: told.param, message: told.message } : null;
});
