// Loaded before the program by a Node that was started ahead: waits for it over descriptor 3, lays it out, and returns.
// Node itself then opens and runs main.js as it always does: there is nothing to imitate.
'use strict';

const DOOR = 3;
const PACKET_BYTES_MAX = 128 * 1024;

// A worker of the program's loads this, too, and has nothing to wait for.
if (require('worker_threads').isMainThread) waitForProgram(require('fs'));
const named = process.execArgv.indexOf(__filename);
if (named > 0) process.execArgv.splice(named - 1, 2); // --require and this file
delete require.cache[__filename];

// The first console.log of a program costs more than the rest of it: have its code loaded and compiled by then. Nothing is
// opened for that: what is open, a program can see, and descriptor 1 would never block again. The same goes for reading
// the source map of what we have compiled.
function warmUp() {
  require('tty');
  const { Console } = require('console');
  const { Socket } = require('net');
  const handle = { writeUtf8String: () => 0, writeLatin1String: () => 0 };
  const nowhere = new Socket({ handle, readable: false, writable: true }); // what standard output is, without a pipe
  new Console({ stdout: nowhere, stderr: nowhere, colorMode: false }).log('%s', 1); // else it looks at the real ones
  if (process.execArgv.includes('--enable-source-maps')) {
    const map = Buffer.from('{"version":3,"sources":[],"mappings":""}').toString('base64');
    module._compile(`//# sourceMappingURL=data:application/json;base64,${map}`, `${__dirname}/nothing.js`);
  }
}

function waitForProgram(fs) {
  warmUp();
  const packet = Buffer.allocUnsafeSlow(PACKET_BYTES_MAX);
  const end = fs.readSync(DOOR, packet);
  if (end === 0) process.reallyExit(0); // the host has no use for us
  let start = 4 + packet.readUInt32BE(0);
  const order = JSON.parse(packet.toString('utf8', 4, start));
  try {
    for (const [path, size, isCompiled] of order.files) {
      if (path.includes('/')) fs.mkdirSync(path.slice(0, path.lastIndexOf('/')), { recursive: true });
      const kind = isCompiled ? { flag: 'w', mode: 0o755 } : { flag: 'wx', mode: 0o644 };
      fs.writeFileSync(path, packet.subarray(start, start + size), kind);
      start += size;
    }
  } catch (error) {
    const told = Buffer.from(JSON.stringify({ failed: String(error.message) }));
    const head = Buffer.alloc(4);
    head.writeUInt32BE(told.length);
    fs.writeSync(DOOR, Buffer.concat([head, told]));
    process.reallyExit(71);
  }
  fs.writeSync(DOOR, Buffer.alloc(4)); // it is ours now
  fs.closeSync(DOOR);
  if (!order.stdin) {
    fs.closeSync(0);
    fs.openSync('/dev/null', 'r'); // the lowest free number: 0
  }
  process.argv.push(...order.args);
}
