/** Conversations and their messages in the browser's database. */

const channel = new BroadcastChannel("oxillama"); // between tabs

const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("oxillama", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("chats", { keyPath: "id" });
    request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
  };
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
}).catch(() => null);

/** What the request that work(chats, messages) makes gives; undefined without a database. */
async function run(mode, work) {
  const transaction = (await opened)?.transaction(["chats", "messages"], mode);
  const request = transaction && work(transaction.objectStore("chats"), transaction.objectStore("messages"));
  return new Promise((resolve, reject) => {
    if (!transaction) return resolve();
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** All conversations, the one that was used last first. */
export async function listChats() {
  return (await run("readonly", (chats) => chats.getAll()) ?? []).sort((a, b) => b.updated - a.updated);
}

/** The messages of a conversation, or of all. */
export async function listMessages(chat) {
  return await run("readonly", (_, messages) => (chat ? messages.index("chat").getAll(chat) : messages.getAll())) ?? [];
}

/** Writes a conversation, and those of its messages that have changed. */
export async function save(chat, ...changed) {
  if (!(await opened)) throw new Error("it has no database");
  await run("readwrite", (chats, messages) => {
    for (const message of changed) messages.put(message);
    chats.put(chat);
  });
  channel.postMessage("saved");
}

export async function remove(chat) {
  const gone = await listMessages(chat);
  await run("readwrite", (chats, messages) => {
    for (const message of gone) messages.delete(message.id);
    chats.delete(chat);
  });
  channel.postMessage("saved");
}

export const onChange = (then) => channel.addEventListener("message", then);

/** One conversation, or all, each with its messages and branches, as JSON. */
export async function exported(id) {
  const chats = (await listChats()).filter((chat) => !id || chat.id === id);
  const conversations = await Promise.all(chats.map(async (chat) => ({ ...chat, messages: await listMessages(chat.id) })));
  return JSON.stringify({ format: "oxillama-conversations", version: 1, conversations }, null, 1);
}
