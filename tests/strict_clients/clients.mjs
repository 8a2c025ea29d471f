// Answers of the official SDKs for Node and of the Vercel AI SDK. Each line of the input is {dialect, content_type, body}, with the bytes
// of the body as characters; each line of the output has the answer or the error of every client. The bytes arrive in process: the
// client's own parser and schemas read them.

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
const baseURL = "http://127.0.0.1/v1";
globalThis.AI_SDK_LOG_WARNINGS = false;
console.error = console.warn = () => {};
process.on("unhandledRejection", () => {});

const answer = (text, reasoning, finish, usage, calls) => ({ text: text ?? "", reasoning, finish, usage: usage ?? null, calls });
const joined = (parts, ...members) => (parts ?? []).map((part) => members.map((member) => part[member]).find((found) => found != null) ?? "").join("");

async function openaiChat(fetch) {
  const client = new OpenAI({ baseURL, apiKey, fetch, maxRetries: 0 });
  const stream = client.chat.completions.stream({ model: "m", messages, stream_options: { include_usage: true } });
  const { choices: [{ message, finish_reason }], usage } = await stream.finalChatCompletion();
  const calls = (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]);
  const text = (message.content ?? "") + (message.refusal ?? "");
  return { ...answer(text, "", finish_reason, usage && [usage.prompt_tokens, usage.completion_tokens], calls), role: message.role };
}

async function openaiResponses(fetch) {
  const client = new OpenAI({ baseURL, apiKey, fetch, maxRetries: 0 });
  const { output, status, usage } = await client.responses.stream({ model: "m", input: PROMPT }).finalResponse();
  const of = (...types) => output.filter((item) => types.includes(item.type));
  const text = of("message").map((item) => joined(item.content, "text", "refusal")).join("");
  const reasoning = of("reasoning").map((item) => joined(item.content, "text") + joined(item.summary, "text")).join("");
  const calls = of("function_call", "custom_tool_call").map((item) => [item.name, item.arguments ?? item.input]);
  return answer(text, reasoning, status, usage && [usage.input_tokens, usage.output_tokens], calls);
}

async function anthropicMessages(fetch) {
  const client = new Anthropic({ baseURL: "http://127.0.0.1", apiKey, fetch, maxRetries: 0 });
  const { content, stop_reason, usage } = await client.messages.stream({ model: "m", max_tokens: 9, messages }).finalMessage();
  const of = (type) => content.filter((block) => block.type === type);
  const calls = of("tool_use").map((block) => [block.name, JSON.stringify(block.input)]);
  return answer(joined(of("text"), "text"), joined(of("thinking"), "thinking"), stop_reason, usage && [usage.input_tokens, usage.output_tokens], calls);
}

const aiSdk = (model) => async (fetch) => {
  let error, finish, usage, text = "", reasoning = "";
  const calls = [];
  const tools = { shell: tool({ inputSchema: jsonSchema({ type: "object" }) }) };
  const options = { model: model(fetch), prompt: PROMPT, maxRetries: 0, tools, onError: () => {} };
  for await (const part of streamText(options).fullStream) {
    if (part.type === "error") error ??= part.error;
    if (part.type === "text-delta") text += part.text;
    if (part.type === "reasoning-delta") reasoning += part.text;
    if (part.type === "tool-call" && !part.providerExecuted) calls.push([part.toolName, typeof part.input === "string" ? part.input : JSON.stringify(part.input)]);
    if (part.type === "finish") [finish, usage] = [part.rawFinishReason ?? part.finishReason, part.totalUsage];
  }
  if (error) throw error instanceof Error ? error : new Error(JSON.stringify(error));
  return answer(text, reasoning, finish, usage && [usage.inputTokens, usage.outputTokens], calls);
};

const CLIENTS = {
  openai_chat: {
    "openai-node": [openaiChat],
    "ai-sdk": [
      aiSdk((fetch) => createOpenAI({ baseURL, apiKey, fetch }).chat("m")),
      aiSdk((fetch) => createOpenAICompatible({ name: "x", baseURL, apiKey, fetch, includeUsage: true })("m")),
    ],
  },
  openai_responses: {
    "openai-node": [openaiResponses],
    "ai-sdk": [aiSdk((fetch) => createOpenAI({ baseURL, apiKey, fetch }).responses("m"))],
  },
  anthropic_messages: {
    "anthropic-node": [anthropicMessages],
    "ai-sdk": [aiSdk((fetch) => createAnthropic({ baseURL, apiKey, fetch })("m"))],
  },
};

const TIMEOUT_MS = 10_000;
const timeout = () => new Promise((_, reject) => setTimeout(() => reject(new Error("the client does not end")), TIMEOUT_MS).unref());

for await (const line of createInterface({ input: process.stdin })) {
  const { dialect, content_type, body } = JSON.parse(line);
  const fetch = async () => new Response(Buffer.from(body, "latin1"), { headers: { "content-type": content_type } });
  const found = {};
  for (const [name, runs] of Object.entries(CLIENTS[dialect])) {
    found[name] = await Promise.all(
      runs.map((run) =>
        Promise.race([run(fetch), timeout()]).catch((error) => ({ error: `${error?.constructor?.name}: ${error?.message}`.slice(0, 200) })),
      ),
    );
  }
  process.stdout.write(JSON.stringify(found) + "\n");
}
process.exit(0);
