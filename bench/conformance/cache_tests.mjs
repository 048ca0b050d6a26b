// Runs a copy of http-tests/cache-tests against one cache and prints the results as JSON. See cache_tests.py.
//
//   node cache_tests.mjs SUITE BASE_URL AT_A_TIME [TEST_ID]
//
// The suite's own modules send the requests and judge the replies. Its command-line client prints neither the kind
// of a test nor the tests that it depends on, therefore this script takes its place.

import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [suite, base, atATime, only] = process.argv.slice(2)
const load = file => import(pathToFileURL(path.join(suite, file)))
const { runTests, getResults } = await load('test-engine/client/runner.mjs')
const { determineTestResult, resultTypes } = await load('test-engine/lib/results.mjs')
const groups = (await load('tests/index.mjs')).default

const verdictNames = new Map(Object.entries(resultTypes).map(([name, type]) => [type, name]))

// The suite sends the tests of a chunk at the same time and judges a test with its dependencies afterwards. If one
// test is asked for, its dependencies run too.
function wanted () {
  if (!only) return groups
  const named = id => groups.flatMap(group => group.tests).find(test => test.id === id)
  const ids = new Set()
  const add = id => {
    if (ids.has(id)) return
    if (!named(id)) throw new Error(`the suite has no test ${id}`)
    ids.add(id)
    ;(named(id).depends_on || []).forEach(add)
  }
  add(only)
  return groups.map(group => ({ ...group, tests: group.tests.filter(test => ids.has(test.id)) }))
}

// The suite reports lost connections on stdout with console.log, where this script writes its JSON.
console.log = console.error
await runTests(wanted(), false, base, Number(atATime))
const results = getResults()
const tests = wanted().flatMap(group => group.tests.filter(test => test.id in results).map(test => ({
  id: test.id,
  group: group.name,
  name: test.name,
  kind: test.kind || 'required',
  depends_on: test.depends_on || [],
  verdict: verdictNames.get(determineTestResult(groups, test.id, results)),
  alone: verdictNames.get(determineTestResult(groups, test.id, results, false)),
  reason: results[test.id] === true ? '' : results[test.id].join(': ')
})))
process.stdout.write(JSON.stringify(tests))
