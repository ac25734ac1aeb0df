# header_chains.awk <header...>, run in the folder that the headers' paths are relative to: prints
# every header once, in chains, one chain per line. In a chain, each header is included by the next
# one, directly or indirectly. So a single source that includes a chain in order checks that each of
# its headers compiles alone: everything before a header is included by that header anyway.
FNR == 1 { headers[++count] = FILENAME }
/^[ \t]*#[ \t]*include[ \t]*"/ {
  split($0, part, "\"")
  direct[FILENAME] = direct[FILENAME] " " part[2]
}

function close_over(header, from,   names, n, i) {
  n = split(direct[from], names, " ")
  for (i = 1; i <= n; i++) {
    if (!(names[i] in path) || (header, path[names[i]]) in includes) continue
    includes[header, path[names[i]]] = 1
    size[header]++
    close_over(header, path[names[i]])
  }
}

# The header with the most includes among those in no chain yet; with `by`, only among those it
# includes.
function largest(by,   i, best) {
  best = ""
  for (i = 1; i <= count; i++) {
    if (headers[i] in taken || (by != "" && !((by, headers[i]) in includes))) continue
    if (best == "" || size[headers[i]] > size[best]) best = headers[i]
  }
  if (best != "") taken[best] = 1
  return best
}

END {
  for (i = 1; i <= count; i++) {
    name = headers[i]
    sub(/^(src|apps|tests)\//, "", name)
    path[name] = headers[i]
    size[headers[i]] = 0
  }
  for (i = 1; i <= count; i++) close_over(headers[i], headers[i])
  while ((last = largest("")) != "") {
    line = last
    while ((last = largest(last)) != "") line = last " " line
    print line
  }
}
