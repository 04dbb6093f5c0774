// The trust file, line by line (trust.h).
#include <algorithm>
#include <cstdlib>
#include <set>

#include "trust.h"

namespace disc {
namespace {

constexpr size_t kMaxId = 64;

bool blank(char c) { return c == ' ' || c == '\t'; }

std::string trimmed(const std::string& s) {
  size_t begin = 0, end = s.size();
  while (begin < end && blank(s[begin])) ++begin;
  while (end > begin && blank(s[end - 1])) --end;
  return s.substr(begin, end - begin);
}

// What follows a value: nothing, or a comment.
bool ends(const std::string& rest) {
  const std::string t = trimmed(rest);
  return t.empty() || t[0] == '#';
}

// "..." without quotes or backslashes in it, of printable ASCII.
bool text_value(const std::string& value, std::string* out) {
  if (value.empty() || value[0] != '"') return false;
  const size_t end = value.find('"', 1);
  if (end == std::string::npos || !ends(value.substr(end + 1))) return false;
  *out = value.substr(1, end - 1);
  return std::all_of(out->begin(), out->end(), [](char c) { return c >= 0x20 && c < 0x7f && c != '\\'; });
}

std::string bare_value(const std::string& value) {
  const size_t end = value.find_first_of(" \t#");
  return end == std::string::npos ? value : ends(value.substr(end)) ? value.substr(0, end) : std::string();
}

bool base64_value(const std::string& text, std::array<uint8_t, 32>* out) {
  static const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() != 44 || text[43] != '=') return false;
  uint32_t bits = 0;
  int have = 0;
  size_t n = 0;
  for (size_t i = 0; i < 43; ++i) {
    const size_t digit = digits.find(text[i]);
    if (digit == std::string::npos) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((have += 6) >= 8) (*out)[n++] = static_cast<uint8_t>(bits >> (have -= 8));
  }
  return n == out->size();
}

// `count` digits at `at`; -1 for anything else.
int digits_at(const std::string& s, size_t at, size_t count) {
  int value = 0;
  for (size_t i = at; i < at + count; ++i) {
    if (i >= s.size() || s[i] < '0' || s[i] > '9') return -1;
    value = 10 * value + (s[i] - '0');
  }
  return value;
}

int64_t days_since_1970(int64_t year, int month, int day) {
  // years that begin in March: the leap day is the last
  year -= month <= 2;
  const int64_t era = year / 400, of_era = year % 400;
  const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// 2026-11-01T00:00:00Z, with a fraction or +01:00 where that is there.
bool time_value(const std::string& s, std::optional<double>* out) {
  const int year = digits_at(s, 0, 4), month = digits_at(s, 5, 2), day = digits_at(s, 8, 2);
  const int hour = digits_at(s, 11, 2), minute = digits_at(s, 14, 2), second = digits_at(s, 17, 2);
  if (year < 1 || month < 1 || month > 12 || day < 1 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return false;
  if (s[4] != '-' || s[7] != '-' || s[10] != 'T' || s[13] != ':' || s[16] != ':') return false;
  const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
  static constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (day > kDays[month - 1] + (month == 2 && leap)) return false;
  double seconds = static_cast<double>(days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second);
  size_t at = 19;
  if (at < s.size() && s[at] == '.') {
    double unit = 0.1;
    const size_t begin = ++at;
    for (; at < s.size() && s[at] >= '0' && s[at] <= '9'; ++at, unit /= 10) seconds += unit * (s[at] - '0');
    if (at == begin) return false;
  }
  const std::string zone = s.substr(at);
  if (zone != "Z") {
    const int hours = digits_at(zone, 1, 2), minutes = digits_at(zone, 4, 2);
    if (zone.size() != 6 || (zone[0] != '+' && zone[0] != '-') || zone[3] != ':' || hours < 0 || hours > 23 || minutes < 0 || minutes > 59) return false;
    seconds -= (zone[0] == '-' ? -1 : 1) * (hours * 3600 + minutes * 60);
  }
  *out = seconds;
  return true;
}

// Why a line does not fit; "" if it does.
std::string read_field(const std::string& name, const std::string& value, TrustedKey* key) {
  std::string text;
  if (name == "id") {
    const bool good = text_value(value, &key->id) && !key->id.empty() && key->id.size() <= kMaxId;
    return good ? "" : "id: 1 to 64 ASCII characters in double quotes are wanted, no quotes or backslashes in them";
  }
  if (name == "public") {
    const bool good = text_value(value, &text) && base64_value(text, &key->key);
    return good ? "" : "public: 32 bytes in base64, in double quotes, are wanted";
  }
  if (name == "not_before" || name == "not_after") {
    const bool good = time_value(bare_value(value), name == "not_after" ? &key->not_after : &key->not_before);
    return good ? "" : name + ": a date and time with its zone is wanted, such as 2026-11-01T00:00:00Z";
  }
  if (name == "revoked") {
    text = bare_value(value);
    key->revoked = text == "true";
    return text == "true" || text == "false" ? "" : "revoked: true or false is wanted";
  }
  return "only [[key]], id, public, not_before, not_after and revoked are wanted, each on a line of its own, as `python -m disc_tf_server.signing "
         "trust` prints them";
}

}  // namespace

Status parse_trust_file(const std::string& text, const std::string& path, std::vector<TrustedKey>* out) {
  out->clear();
  std::set<std::string> given, ids;
  size_t line = 0;
  const auto wrong = [&](const std::string& why) {
    return Status(kFailedPrecondition, "trust file " + path + ", line " + std::to_string(line) + ": " + why);
  };
  // the key that ends here is whole
  const auto finish = [&]() -> std::string {
    if (out->empty()) return "";
    const TrustedKey& k = out->back();
    if (!given.count("id") || !given.count("public")) return "the key before has no id or no public";
    if (!ids.insert(k.id).second) return "the id of the key before occurs twice";
    if (k.not_before && k.not_after && *k.not_before >= *k.not_after) return "the key before ends before it begins";
    return "";
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string s = text.substr(at, end - at);
    at = end + 1;
    ++line;
    if (!s.empty() && s.back() == '\r') s.pop_back();
    s = trimmed(s);
    if (s.empty() || s[0] == '#') continue;
    if (s.compare(0, 7, "[[key]]") == 0 && ends(s.substr(7))) {
      if (const std::string why = finish(); !why.empty()) return wrong(why);
      given.clear();
      out->emplace_back();
      continue;
    }
    const size_t equals = s.find('=');
    const std::string name = trimmed(s.substr(0, equals));
    if (out->empty()) return wrong("a [[key]] is wanted first");
    const std::string value = equals == std::string::npos ? "" : trimmed(s.substr(equals + 1));
    if (const std::string why = read_field(name, value, &out->back()); !why.empty()) return wrong(why);
    if (!given.insert(name).second) return wrong(name + " occurs twice");
  }
  if (const std::string why = finish(); !why.empty()) return wrong(why);
  return out->empty() ? Status(kFailedPrecondition, "trust file " + path + ": there is no key in it") : Status();
}

}  // namespace disc
