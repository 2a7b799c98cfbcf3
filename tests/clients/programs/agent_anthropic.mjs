// Anthropic's toolRunner.
import Anthropic from "@anthropic-ai/sdk";
import { KEY, MODEL, PARAMETERS, QUESTIONS, SYSTEM, URL, tell, weatherIn } from "./agent.mjs";

const client = new Anthropic({ baseURL: URL.replace(/\/v1$/, ""), apiKey: KEY, maxRetries: 0 });
const weather = { type: "custom", name: "get_weather", description: "The weather in a city.", input_schema: PARAMETERS };
const tools = [{ ...weather, run: async (input) => weatherIn(input), parse: (input) => input }];

let messages = [];
const answers = [];
for (const content of QUESTIONS) {
  messages.push({ role: "user", content });
  const runner = client.beta.messages.toolRunner({ model: MODEL, max_tokens: 400, system: SYSTEM, messages, tools });
  const last = await runner.runUntilDone();
  answers.push(last.content.filter((block) => block.type === "text").map((block) => block.text).join(""));
  messages = [...runner.params.messages];
}
tell(answers);
