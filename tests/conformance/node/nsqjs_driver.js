// A driver of nsqjs: its Reader and its Writer.  What it speaks: tests/conformance/clients.

const fs = require('fs')
const readline = require('readline')
const nsq = require('nsqjs')

const HEARTBEAT_S = 1

const port = Number(process.argv[2])
const {ca, secret, ...compression} = JSON.parse(process.argv[3] || '{}')
const secured = {
  ...compression,
  ...(ca ? {tls: true, ca: fs.readFileSync(ca)} : {}),
  ...(secret ? {authSecret: secret} : {}),
}
const messages = new Map()
const writer = new nsq.Writer('127.0.0.1', port, {heartbeatInterval: HEARTBEAT_S, ...secured})
let reader = null

function tell(event, fields = {}) {
  process.stdout.write(JSON.stringify({event, ...fields}) + '\n')
}

function published(error) {
  tell('published', {error: error ? String(error.message || error) : null})
}

function take(message) {
  messages.set(message.id, message)
  tell('message', {
    id: message.id,
    attempts: message.attempts,
    timestamp_ns: Number(message.timestamp),
    body: message.body.toString('latin1'),
  })
}

const commands = {
  subscribe({topic, channel, ready, timeout_ms}) {
    reader = new nsq.Reader(topic, channel, {
      nsqdTCPAddresses: [`127.0.0.1:${port}`],
      maxInFlight: ready,
      messageTimeout: timeout_ms,
      heartbeatInterval: HEARTBEAT_S,
      ...secured,
    })
    reader.on(nsq.Reader.MESSAGE, take)
    reader.on(nsq.Reader.ERROR, (error) => process.stderr.write(`${error}\n`))
    reader.on(nsq.Reader.NSQD_CONNECTED, () => tell('subscribed'))
    reader.connect()
  },
  publish({topic, bodies}) {
    const raw = bodies.map((body) => Buffer.from(body, 'latin1'))
    writer.publish(topic, raw.length === 1 ? raw[0] : raw, published)
  },
  defer({topic, body, delay_ms}) {
    // deferPublish wants a list, of which it sends the first.
    writer.deferPublish(topic, [Buffer.from(body, 'latin1')], delay_ms, published)
  },
  finish({id}) {
    messages.get(id).finish()
    messages.delete(id)
  },
  touch({id}) {
    messages.get(id).touch()
  },
  requeue({id, delay_ms}) {
    messages.get(id).requeue(delay_ms, false)
    messages.delete(id)
  },
}

writer.on(nsq.Writer.ERROR, (error) => process.stderr.write(`${error}\n`))
writer.on(nsq.Writer.READY, () => {
  const lines = readline.createInterface({input: process.stdin})
  lines.on('line', (line) => {
    const command = JSON.parse(line)
    commands[command.do](command)
  })
  lines.on('close', () => process.exit(0))
})
writer.connect()
