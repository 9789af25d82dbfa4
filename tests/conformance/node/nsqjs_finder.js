// A consumer of nsqjs that knows nsqlookupds only: nsqjs_finder.js <topic> <channel> <address>...
// What it writes: tests/conformance/clients/finders.py.

const nsq = require('nsqjs')

const POLL_S = 1

const [topic, channel, ...addresses] = process.argv.slice(2)
const reader = new nsq.Reader(topic, channel, {
  lookupdHTTPAddresses: addresses,
  lookupdPollInterval: POLL_S,
  lookupdPollJitter: 0.01, // 0 is refused
  maxInFlight: 10,
})
reader.on(nsq.Reader.MESSAGE, (message) => {
  process.stdout.write(`${message.body}\n`)
  message.finish()
})
reader.on(nsq.Reader.ERROR, (error) => process.stderr.write(`${error}\n`))
reader.connect()
