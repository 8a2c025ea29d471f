// Answers of the official SDKs for Node and of the Vercel AI SDK. Each line of the input is {dialect, url}; each line of the output has
// the answer or the error of every client.

import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.argv[2] + "/");
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const [{ OpenAI }, { Anthropic }, { streamText, jsonSchema, tool }, { createOpenAI }, { createOpenAICompatible }, { createAnthropic }] =
  await Promise.all(["openai", "@anthropic-ai/sdk", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic"].map(load));

const PROMPT = "hi";
const messages = [{ role: "user", content: PROMPT }];
const apiKey = "k";
globalThis.AI_SDK_LOG_WARNINGS = false;
console.error = console.warn = () => {};
process.on("unhandledRejection", () => {});

const answer = (text, finish, usage, calls) => ({ text: text ?? "", finish, usage: usage ?? null, calls });

async function openaiChat(url) {
  const client = new OpenAI({ baseURL: url + "/v1", apiKey, maxRetries: 0 });
  const stream = client.chat.completions.stream({ model: "m", messages, stream_options: { include_usage: true } });
  const { choices: [{ message, finish_reason }], usage } = await stream.finalChatCompletion();
  const calls = (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]);
  return answer(message.content, finish_reason, usage && [usage.prompt_tokens, usage.completion_tokens], calls);
}

async function openaiResponses(url) {
  const client = new OpenAI({ baseURL: url + "/v1", apiKey, maxRetries: 0 });
  const { output, status, usage } = await client.responses.stream({ model: "m", input: PROMPT }).finalResponse();
  const text = output.flatMap((item) => item.content ?? []).map((part) => part.text).join("");
  const calls = output.filter((item) => item.type === "function_call").map((item) => [item.name, item.arguments]);
  return answer(text, status, usage && [usage.input_tokens, usage.output_tokens], calls);
}

async function anthropicMessages(url) {
  const client = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
  const { content, stop_reason, usage } = await client.messages.stream({ model: "m", max_tokens: 9, messages }).finalMessage();
  const calls = content.filter((block) => block.type === "tool_use").map((block) => [block.name, JSON.stringify(block.input)]);
  const text = content.map((block) => block.text ?? "").join("");
  return answer(text, stop_reason, usage && [usage.input_tokens, usage.output_tokens], calls);
}

const aiSdk = (model) => async (url) => {
  let error, finish, usage, text = "";
  const calls = [];
  const tools = { shell: tool({ inputSchema: jsonSchema({ type: "object" }) }) };
  const options = { model: model(url), prompt: PROMPT, maxRetries: 0, tools, onError: () => {} };
  for await (const part of streamText(options).fullStream) {
    if (part.type === "error") error ??= part.error;
    if (part.type === "text-delta") text += part.text;
    if (part.type === "tool-call") calls.push([part.toolName, JSON.stringify(part.input)]);
    if (part.type === "finish") [finish, usage] = [part.rawFinishReason ?? part.finishReason, part.totalUsage];
  }
  if (error) throw error instanceof Error ? error : new Error(JSON.stringify(error));
  return answer(text, finish, usage && [usage.inputTokens, usage.outputTokens], calls);
};

const CLIENTS = {
  openai_chat: {
    "openai-node": [openaiChat],
    "ai-sdk": [
      aiSdk((url) => createOpenAI({ baseURL: url + "/v1", apiKey }).chat("m")),
      aiSdk((url) => createOpenAICompatible({ name: "x", baseURL: url + "/v1", apiKey, includeUsage: true })("m")),
    ],
  },
  openai_responses: {
    "openai-node": [openaiResponses],
    "ai-sdk": [aiSdk((url) => createOpenAI({ baseURL: url + "/v1", apiKey }).responses("m"))],
  },
  anthropic_messages: {
    "anthropic-node": [anthropicMessages],
    "ai-sdk": [aiSdk((url) => createAnthropic({ baseURL: url + "/v1", apiKey })("m"))],
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { dialect, url } = JSON.parse(line);
  const found = {};
  for (const [name, runs] of Object.entries(CLIENTS[dialect])) {
    found[name] = await Promise.all(
      runs.map((run, number) => run(`${url}/${name}-${number}`).catch((error) => ({ error: `${error.constructor?.name}: ${error.message}`.slice(0, 200) }))),
    );
  }
  process.stdout.write(JSON.stringify(found) + "\n");
}
