// One context for the whole session; cells come as frames over descriptor 3, answers leave over 4.
// Node's own REPL evaluates: it knows top-level await, keeps `let` and `const`, and breaks endless loops at SIGINT.
'use strict';
const fs = require('fs');
const net = require('net');
const repl = require('repl');
const util = require('util');
const { PassThrough } = require('stream');

const server = repl.start({
  prompt: '',
  input: new PassThrough(),
  output: process.stdout,
  terminal: false,
  useColors: false,
  useGlobal: false,
  breakEvalOnSigint: true,
  ignoreUndefined: true,
});
server.context.console = console;


// While a cell computes, Node itself breaks it at SIGINT, but only if no handler is
// registered; while it awaits, our own handler does.
const ignore = () => {};
const interrupt = () => finishCell && finishCell(Object.assign(new Error('interrupted'), { name: 'Interrupted' }));
process.on('SIGINT', ignore);

// What a cell throws is reported to the REPL's domain only.
let finishCell = null;
server._domain.removeAllListeners('error');
server._domain.on('error', (error) => {
  if (finishCell) finishCell(error);
  else fs.writeSync(2, `Uncaught ${describe(error).traceback.join('\n')}\n`);
});

function describe(error) {
  if (error instanceof repl.Recoverable) error = error.err;
  if (!(error && typeof error === 'object' && 'message' in error)) {
    const text = util.inspect(error);
    return { type: 'Error', message: text.slice(0, 2000), traceback: [`Uncaught ${text}`.slice(0, 2000)] };
  }
  const interrupted = error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
  const lines = String(error.stack || error).split('\n').filter((line) => !/\(?node:|\[eval\]|REPLServer/.test(line));
  if (lines.at(-1).endsWith('at new Promise (<anonymous>)')) lines.pop();  // ours, in which the cell runs
  return {
    type: interrupted ? 'Interrupted' : String(error.name || 'Error').slice(0, 200),
    message: String(error.message).slice(0, 2000),
    traceback: lines.slice(0, 50).map((line) => line.slice(0, 500)),
  };
}

function answer(error, value) {
  let told = { error: null };
  if (error !== null && error !== undefined) {
    told = { error: describe(error) };
    process.stderr.write(`Uncaught ${told.error.traceback.join('\n')}\n`);
  } else if (value !== undefined) {
    told.value = util.inspect(value, { maxStringLength: 100000, maxArrayLength: 1000 }).slice(0, 200000);
  }
  const body = Buffer.from(JSON.stringify(told));
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  const frame = Buffer.concat([head, body]);
  // What the cell has written must be on its way before it is said to have ended.
  process.stdout.write('', () => process.stderr.write('', () => {
    for (let sent = 0; sent < frame.length; ) sent += fs.writeSync(4, frame, sent);
  }));
}

let unread = Buffer.alloc(0);
const busy = { promise: Promise.resolve() };
// Not a file stream: its thread would sit in a read that nothing ends, and Node waits for its threads at exit.
new net.Socket({ fd: 3, readable: true, writable: false }).on('data', (chunk) => {
  unread = Buffer.concat([unread, chunk]);
  while (unread.length >= 4 && unread.length >= 4 + unread.readUInt32BE(0)) {
    const end = 4 + unread.readUInt32BE(0);
    const code = unread.subarray(4, end).toString();
    unread = unread.subarray(end);
    busy.promise = busy.promise.then(
      () =>
        new Promise((done) => {
          let answered = false;
          const finish = (error, value) => {
            if (answered) return;
            answered = true;
            process.on('SIGINT', ignore);
            process.removeListener('SIGINT', interrupt);
            finishCell = null;
            answer(error, value);
            done();
          };
          finishCell = finish;
          process.removeListener('SIGINT', ignore);
          try {
            server.eval(`${code}\n`, server.context, 'cell', (error, value) => finish(error, value));
          } catch (error) {
            finish(error);
          }
          if (!answered) process.on('SIGINT', interrupt);
        }),
    );
  }
}).on('end', () => process.exit(0));
