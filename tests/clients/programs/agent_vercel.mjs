// The Vercel AI SDK: generateText with steps.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";
import { API, KEY, MODEL, QUESTIONS, SYSTEM, URL, tell, weatherIn } from "./agent.mjs";

const model =
  API === "chats"
    ? createOpenAICompatible({ name: "millrace", baseURL: URL, apiKey: KEY })(MODEL)
    : createOpenAI({ baseURL: URL, apiKey: KEY })(MODEL);
const execute = async (input) => weatherIn(input);
const tools = { get_weather: tool({ description: "The weather in a city.", inputSchema: z.object({ city: z.string() }), execute }) };

let messages = [];
const answers = [];
for (const content of QUESTIONS) {
  messages.push({ role: "user", content });
  const result = await generateText({ model, system: SYSTEM, messages, tools, maxRetries: 0, stopWhen: stepCountIs(20) });
  answers.push(result.text);
  messages = [...messages, ...result.responseMessages];
}
tell(answers);
