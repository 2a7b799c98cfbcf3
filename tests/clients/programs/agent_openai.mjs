// OpenAI's runTools.
import OpenAI from "openai";
import { KEY, MODEL, PARAMETERS, QUESTIONS, SYSTEM, URL, tell, weatherIn } from "./agent.mjs";

const client = new OpenAI({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const weather = { name: "get_weather", description: "The weather in a city.", parameters: PARAMETERS };
const tools = [{ type: "function", function: { ...weather, parse: JSON.parse, function: async (input) => weatherIn(input) } }];

let messages = [{ role: "system", content: SYSTEM }];
const answers = [];
for (const content of QUESTIONS) {
  messages.push({ role: "user", content });
  const runner = client.chat.completions.runTools({ model: MODEL, messages, tools }, { maxChatCompletions: 20 });
  answers.push(await runner.finalContent());
  messages = [...runner.messages];
}
tell(answers);
