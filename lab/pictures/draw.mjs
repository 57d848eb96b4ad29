// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Draws the recordings of lab/pictures:
//   node draw.mjs cast CAST SVG COMMAND       an asciicast of a command as an animated SVG
//   node draw.mjs ui ADDRESS DIR CHROMIUM     pages of Nomad's web UI as PNG, of jobs that have run there

import { readFileSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { chromium } from 'playwright-core'
import svgTerm from 'svg-term'

const [what, from, to, executablePath] = process.argv.slice(2)
if (what === 'cast') {
  const cast = pace(readFileSync(from, 'utf8').replaceAll(homedir() + '/', '~/'), executablePath)
  const { width } = JSON.parse(cast.split('\n', 1))
  const svg = svgTerm.render(cast, { window: true, cursor: false })
  // frames are side by side: each must end where the next one begins
  writeFileSync(to, svg.replaceAll(/<svg x="(\d+)">/g, `<svg x="$1" width="${width}">`))
} else {
  const browser = await chromium.launch({ executablePath })
  try {
    await screenshots(await browser.newPage({ deviceScaleFactor: 1.5 }))
  } finally {
    await browser.close()
  }
}

// pace types the command at a prompt, shortens pauses, and gives readers time for each line: speeds are not real.
function pace(cast, command) {
  const [header, ...output] = cast.trim().split('\n').map((line) => JSON.parse(line))
  const margin = 1 // letters of some fonts are wider than a column
  const shown = [{ ...header, width: header.width + margin }]
  let time = 0
  const show = (after, text) => shown.push([(time += after), 'o', text])
  const prompt = '\x1b[1;32m$\x1b[0m '
  show(0, prompt)
  for (const letter of command) show(0.035, letter)
  show(1, '\r\n')
  const changes = [] // each change makes the picture larger
  for (const [at, , text] of output) {
    const last = changes.at(-1)
    if (last && at - last.at < 0.1) last.text += text
    else changes.push({ at, text })
  }
  let before = 0
  let lines = 0
  for (const { at, text } of changes) {
    if (text.startsWith('\r\x1b[K') && !text.includes('\n')) continue // the same step, some seconds later
    show(Math.max(Math.min(at - before, 1), 0.3 * lines), text)
    before = at
    lines = text.split('\n').length - 1
  }
  show(0.3 * lines, prompt)
  show(5, '')
  return shown.map((line) => JSON.stringify(line)).join('\n')
}

async function screenshots(page) {
  const id = async (path) => (await (await fetch(`${from}/v1/${path}`)).json())[0].ID
  const section = (title) => page.locator('.boxed-section', { hasText: title })

  await open(page, 1200, 900, `allocations/${await id('job/crash/allocations')}/app`, 'ModuleNotFoundError')
  const events = await section('Recent Events').boundingBox()
  await page.setViewportSize({ width: 1200, height: Math.ceil(events.y + events.height) + 24 })
  await settle(page)
  await page.screenshot({ path: `${to}/ui-events.png` })

  // high enough to avoid scrolling: the page's header would cover the drivers
  await open(page, 1500, 4000, `clients/${await id('nodes')}`, 'Driver Status')
  const drivers = section('Driver Status')
  await drivers.locator('.accordion-head', { hasText: 'exec-lite' }).getByText('details').click()
  await settle(page)
  await drivers.screenshot({ path: `${to}/ui-drivers.png` })

  await open(page, 1200, 620, `allocations/${await id('job/serial/allocations')}/talk/logs`, 'stick: hello')
  await page.screenshot({ path: `${to}/ui-device.png` })
}

// open opens a page and waits for a text in it: the page fetches its data after it has loaded.
async function open(page, width, height, path, text) {
  await page.setViewportSize({ width, height })
  await page.goto(`${from}/ui/${path}`)
  await page.getByText(text).first().waitFor()
  await settle(page)
}

// settle waits for animations and layout, which have no event at their end.
async function settle(page) {
  await page.waitForTimeout(1500)
}
