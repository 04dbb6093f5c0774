"use strict";
(function () {
  function each(list, f) { Array.prototype.forEach.call(list, f); }
  var box = document.getElementById("search");
  if (box) {
    var groups = document.querySelectorAll("[data-group]");
    var count = document.getElementById("found");
    box.addEventListener("input", function () {
      var want = box.value.trim().toLowerCase(), shown = 0;
      each(groups, function (group) {
        var whole = group.getAttribute("data-group").toLowerCase().indexOf(want) >= 0, any = false;
        each(group.querySelectorAll("li"), function (li) {
          var ok = whole || li.textContent.toLowerCase().indexOf(want) >= 0;
          li.hidden = !ok;
          if (ok) { any = true; shown += 1; }
        });
        group.hidden = !any;
        group.open = any && want !== "";
      });
      count.textContent = want === "" ? "" : shown + " nodes";
    });
  }
  each(document.querySelectorAll("table.sortable"), function (table) {
    each(table.tHead.rows[0].cells, function (head, column) {
      var down = false;
      head.addEventListener("click", function () {
        function key(row) {
          var cell = row.cells[column], v = cell.getAttribute("data-v");
          return v === null ? cell.textContent : parseFloat(v);
        }
        down = !down;
        var rows = Array.prototype.slice.call(table.tBodies[0].rows);
        rows.sort(function (a, b) {
          var x = key(a), y = key(b), order;
          if (typeof x === "number" && typeof y === "number") { order = x - y; }
          else { order = String(x) < String(y) ? -1 : String(x) > String(y) ? 1 : 0; }
          return down ? -order : order;
        });
        each(rows, function (row) { table.tBodies[0].appendChild(row); });
      });
    });
  });
  function open() {
    var at = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (at && at.tagName === "DETAILS") { at.open = true; }
  }
  window.addEventListener("hashchange", open);
  open();
})();
