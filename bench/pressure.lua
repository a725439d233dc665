-- One small program per request, as the original's benchmark has it. Every answer is looked at: a fast wrong one is
-- worth nothing. SESSION=name in the environment sends them all to one session, SESSION=each gives every connection's
-- thread a session of its own.
local session = os.getenv("SESSION")
local threads = {}

function setup(thread)
  table.insert(threads, thread)
  thread:set("number", #threads)
end

function init()
  wrong = 0
  local id = session == "each" and "pressure-" .. number or session
  local named = id and string.format(', "session_id": "%s"', id) or ""
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.body = '{"code": "x = 5\\nprint(x)"' .. named .. "}"
end

function response(status, headers, body)
  if status ~= 200 or not (string.find(body, '"output":"5\\n"', 1, true) or string.find(body, '"stdout":"5\\n"', 1, true)) then
    wrong = wrong + 1
  end
end

function done(summary, latency)
  local bad = 0
  for _, thread in ipairs(threads) do bad = bad + thread:get("wrong") end
  io.write(string.format("wrong answers: %d\n", bad))
end
