// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Draws what lab/pictures has recorded:
//   node draw.mjs cast CAST SVG      an asciicast as an animated SVG
//   node draw.mjs ui ADDRESS DIR     pages of Nomad's web UI as PNG, of jobs that have run there

import { readFileSync, writeFileSync } from 'node:fs'
import { chromium } from 'playwright-core'
import svgTerm from 'svg-term'

const [what, from, to] = process.argv.slice(2)
if (what === 'cast') {
  writeFileSync(to, svgTerm.render(readFileSync(from, 'utf8'), { window: true, cursor: false }))
} else {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || '/usr/bin/chromium' })
  try {
    await screenshots(await browser.newPage({ deviceScaleFactor: 1.5 }))
  } finally {
    await browser.close()
  }
}

async function screenshots(page) {
  const id = async (path) => (await (await fetch(`${from}/v1/${path}`)).json())[0].ID
  const section = (title) => page.locator('.boxed-section', { hasText: title })

  // the page down to the end of the events
  await open(page, 1200, 900, `allocations/${await id('job/crash/allocations')}/app`, 'ModuleNotFoundError')
  const events = await section('Recent Events').boundingBox()
  await page.screenshot({ path: `${to}/ui-events.png`, clip: { x: 0, y: 0, width: 1200, height: events.y + events.height + 24 },
    fullPage: true })

  // high enough for the whole page, since its head stays where it is
  await open(page, 1300, 4000, `clients/${await id('nodes')}`, 'Driver Status')
  const drivers = section('Driver Status')
  await drivers.locator('.accordion-head', { hasText: 'exec-lite' }).getByText('details').click()
  await settle(page)
  await drivers.screenshot({ path: `${to}/ui-drivers.png` })

  await open(page, 1200, 620, `allocations/${await id('job/serial/allocations')}/talk/logs`, 'stick: hello')
  await page.screenshot({ path: `${to}/ui-device.png` })
}

// open waits for a text of a page, which asks for its data when it is there.
async function open(page, width, height, path, text) {
  await page.setViewportSize({ width, height })
  await page.goto(`${from}/ui/${path}`)
  await page.getByText(text).first().waitFor()
  await settle(page)
}

// settle waits for what moves: neither an element nor an event marks its end.
async function settle(page) {
  await page.waitForTimeout(1500)
}
