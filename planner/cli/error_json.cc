#include "cli/error_json.h"

#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <ostream>

namespace shardfit::cli {

void write_errors_json(const InputError& error, std::ostream& out) {
  rapidjson::StringBuffer buffer;
  rapidjson::PrettyWriter<rapidjson::StringBuffer> json(buffer);
  json.SetIndent(' ', 2);
  const auto text = [&](std::string_view value) {
    json.String(value.data(), static_cast<rapidjson::SizeType>(value.size()));
  };
  json.StartObject();
  json.Key("errors");
  json.StartArray();
  for (const Diagnostic& fault : error.diagnostics()) {
    const bool placed = fault.where.known() && !fault.where.source->text.empty();
    json.StartObject();
    json.Key("file");
    text(fault.where.file());
    json.Key("line");
    json.Int(placed ? fault.where.line() : 0);
    json.Key("column");
    json.Int(placed ? fault.where.column() : 0);
    json.Key("message");
    text(fault.message);
    json.Key("notes");
    json.StartArray();
    for (const std::string& note : fault.notes) text(note);
    json.EndArray();
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
  out << buffer.GetString() << "\n";
}

}  // namespace shardfit::cli
