// A server on a port of the loopback, with timers and a watched directory. It tells what
// it holds; with ?word it is told one, and answers when a timer and the watcher have it.
'use strict';
const fs = require('fs');
const http = require('http');

const dir = '/w/watched';
fs.mkdirSync(dir, { recursive: true });
const words = [];
const seen = new Set();
let ticks = 0;
setInterval(() => { ticks++; }, 10);
const waiting = new Map();
fs.watch(dir, (_, name) => {
  seen.add(name);
  const done = waiting.get(name);
  if (done) { waiting.delete(name); done(); }
});
http.createServer((req, res) => {
  const word = new URL(req.url, 'http://x').searchParams.get('word');
  const tell = () => res.end(`${words} seen ${[...seen]}`);
  if (!word) {
    if (req.url === '/ticks') res.end(String(ticks)); else tell();
    return;
  }
  setTimeout(() => {
    words.push(word);
    if (seen.has(word)) return tell();
    waiting.set(word, tell);
    fs.writeFileSync(`${dir}/${word}`, word);
  }, 20);
}).listen(8080, '127.0.0.1');
