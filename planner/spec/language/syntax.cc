#include "spec/language/syntax.h"

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace shardfit::spec {
namespace {

struct Token {
  enum Kind : std::uint8_t { end, name, integer, real, quote, symbol } kind = end;
  std::string text;
  std::size_t at = 0;  // offset in the scalar
};

bool word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Thrown inside the parser to leave it after a fault; never leaves this file.
struct Abandon {};

class Parser {
 public:
  Parser(const Node& scalar, Diagnostics& faults) : scalar_(scalar), faults_(faults) { scan(); }

  Expr expression_only() {
    Expr e = tuple();
    expect_end();
    return e;
  }

  Statement statement() {
    Statement s;
    s.where = scalar_.where;
    if (take_name("return")) {
      s.kind = StatementKind::give_back;
      if (peek().kind != Token::end) s.value = tuple();
    } else if (take_name("del")) {
      s.kind = StatementKind::drop;
      s.targets = name_list();
    } else if (is_assignment()) {
      s.kind = StatementKind::assign;
      s.targets = name_list();
      take_symbol("=");
      s.value = tuple();
    } else {
      s.value = tuple();
    }
    expect_end();
    return s;
  }

  Statement loop_head() {
    Statement s;
    s.kind = StatementKind::loop;
    s.where = scalar_.where;
    s.targets = name_list();
    if (!take_name("in")) fail("expected 'in'");
    s.value = tuple();
    expect_end();
    return s;
  }

 private:
  [[noreturn]] void fail(const std::string& message) {
    Location where = scalar_.where;
    if (where.length > peek().at) {
      where.offset += peek().at;
      where.length = std::max<std::size_t>(peek().text.size(), 1);
    }
    const std::string found = peek().kind == Token::end ? "the end" : quoted(peek().text);
    faults_.error(where, message + ", found " + found + " in " + quoted(scalar_.text));
    throw Abandon{};
  }

  void scan() {
    const std::string& s = scalar_.text;
    std::size_t i = 0;
    while (i < s.size()) {
      const char c = s[i];
      const std::size_t start = i;
      if (std::isspace(static_cast<unsigned char>(c))) {
        ++i;
        continue;
      }
      Token token;
      token.at = start;
      if (std::isdigit(static_cast<unsigned char>(c))) {
        bool real = false;
        while (i < s.size() && (word_char(s[i]) || s[i] == '.' ||
                                ((s[i] == '-' || s[i] == '+') && (s[i - 1] == 'e')))) {
          real = real || s[i] == '.' || s[i] == 'e';
          ++i;
        }
        token.kind = real ? Token::real : Token::integer;
      } else if (word_char(c)) {
        while (i < s.size() && word_char(s[i])) ++i;
        token.kind = Token::name;
      } else if (c == '\'' || c == '"') {
        ++i;
        while (i < s.size() && s[i] != c) ++i;
        token.kind = Token::quote;
        if (i < s.size()) ++i;
      } else {
        token.kind = Token::symbol;
        static const char* const pairs[] = {"**", "//", "==", "!=", "<=", ">="};
        i += 1;
        for (const char* pair : pairs) {
          if (s.compare(start, 2, pair) == 0) i = start + 2;
        }
      }
      token.text = s.substr(start, i - start);
      if (token.kind == Token::quote) token.text = token.text.substr(1, token.text.size() - 2);
      tokens_.push_back(token);
    }
    tokens_.push_back({Token::end, "", s.size()});
  }

  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(next_ + ahead, tokens_.size() - 1)];
  }
  bool take_symbol(const char* text) {
    if (peek().kind != Token::symbol || peek().text != text) return false;
    ++next_;
    return true;
  }
  bool take_name(const char* text) {
    if (peek().kind != Token::name || peek().text != text) return false;
    ++next_;
    return true;
  }
  void expect_symbol(const char* text) {
    if (!take_symbol(text)) fail(std::string("expected '") + text + "'");
  }
  void expect_end() {
    if (peek().kind != Token::end) fail("expected an operator or the end");
  }

  bool is_assignment() const {
    std::size_t i = 0;
    while (peek(i).kind == Token::name) {
      if (peek(i + 1).kind != Token::symbol) return false;
      if (peek(i + 1).text == "=") return true;
      if (peek(i + 1).text != ",") return false;
      i += 2;
    }
    return false;
  }

  std::vector<std::string> name_list() {
    std::vector<std::string> names;
    do {
      if (peek().kind != Token::name) fail("expected a name");
      names.push_back(peek().text);
      ++next_;
    } while (take_symbol(","));
    return names;
  }

  Expr make(ExprKind kind, const std::string& text) {
    Expr e;
    e.kind = kind;
    e.text = text;
    e.where = scalar_.where;
    return e;
  }

  Expr tuple() {
    Expr first = choice();
    if (peek().kind != Token::symbol || peek().text != ",") return first;
    Expr list = make(ExprKind::list, "");
    list.children.push_back(std::move(first));
    while (take_symbol(",")) list.children.push_back(choice());
    return list;
  }

  Expr choice() {
    if (++depth_ > 60) fail("expression nested too deeply");
    Expr value = either();
    if (take_name("if")) {
      Expr e = make(ExprKind::choice, "");
      e.children.push_back(std::move(value));
      e.children.push_back(either());
      if (take_name("else")) {
        e.children.push_back(choice());
      } else {
        e.children.push_back(make(ExprKind::none, ""));
      }
      value = std::move(e);
    }
    --depth_;
    return value;
  }

  Expr joined(const std::string& op, Expr left, Expr right) {
    Expr e = make(ExprKind::binary, op);
    e.children.push_back(std::move(left));
    e.children.push_back(std::move(right));
    return e;
  }

  Expr either() {
    Expr left = both();
    while (take_name("or")) left = joined("or", std::move(left), both());
    return left;
  }
  Expr both() {
    Expr left = negated();
    while (take_name("and")) left = joined("and", std::move(left), negated());
    return left;
  }
  /// Trees are walked by recursion: chains without brackets are bounded as well.
  void count_value() {
    if (++values_ > most_values_of_one) fail("an expression of more than 1,000 values");
  }

  Expr negated() {
    if (!take_name("not")) return comparison();
    count_value();
    Expr e = make(ExprKind::unary, "not");
    e.children.push_back(inner(&Parser::negated));
    return e;
  }
  /// Signs and powers in a row, each inside the one before.
  Expr inner(Expr (Parser::*part)()) {
    if (++row_ > most_in_a_row) fail("expression nested too deeply");
    Expr e = (this->*part)();
    --row_;
    return e;
  }
  Expr comparison() {
    Expr left = sum();
    for (const char* op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (take_symbol(op)) return joined(op, std::move(left), sum());
    }
    if (take_name("in")) return joined("in", std::move(left), sum());
    return left;
  }
  Expr sum() {
    Expr left = product();
    while (peek().kind == Token::symbol && (peek().text == "+" || peek().text == "-")) {
      const std::string op = peek().text;
      ++next_;
      left = joined(op, std::move(left), product());
    }
    return left;
  }
  Expr product() {
    Expr left = power();
    while (peek().kind == Token::symbol && (peek().text == "*" || peek().text == "/" ||
                                            peek().text == "//" || peek().text == "%")) {
      const std::string op = peek().text;
      ++next_;
      left = joined(op, std::move(left), power());
    }
    return left;
  }
  Expr power() {
    count_value();
    if (take_symbol("-")) {
      Expr e = make(ExprKind::unary, "-");
      e.children.push_back(inner(&Parser::power));
      return e;
    }
    Expr base = postfix();
    if (take_symbol("**")) return joined("**", std::move(base), inner(&Parser::power));
    return base;
  }

  Expr postfix() {
    Expr base = primary();
    for (;; count_value()) {
      if (take_symbol("[")) {
        Expr e = make(ExprKind::index, "");
        e.children.push_back(std::move(base));
        e.children.push_back(tuple());
        expect_symbol("]");
        base = std::move(e);
      } else if (take_symbol(".")) {
        if (peek().kind != Token::name) fail("expected a name after '.'");
        Expr e = make(ExprKind::attribute, peek().text);
        ++next_;
        e.children.push_back(std::move(base));
        base = std::move(e);
      } else if (peek().kind == Token::symbol && peek().text == "(") {
        base = call(std::move(base));
      } else {
        return base;
      }
    }
  }

  /// A call keeps what is called as its first child unless that is a plain name.
  Expr call(Expr callee) {
    expect_symbol("(");
    Expr e = make(ExprKind::call, callee.kind == ExprKind::name ? callee.text : "");
    if (callee.kind != ExprKind::name) {
      e.names.push_back("()");
      e.children.push_back(std::move(callee));
    }
    while (!take_symbol(")")) {
      std::string name;
      if (peek().kind == Token::name && peek(1).kind == Token::symbol && peek(1).text == "=") {
        name = peek().text;
        next_ += 2;
      }
      e.names.push_back(name);
      e.children.push_back(choice());
      if (!take_symbol(",") && !(peek().kind == Token::symbol && peek().text == ")")) {
        fail("expected ',' or ')'");
      }
    }
    return e;
  }

  Expr primary() {
    const Token token = peek();
    if (token.kind == Token::end) fail("expected a value");
    ++next_;
    switch (token.kind) {
      case Token::integer:
        return number(token);
      case Token::real: {
        Expr e = make(ExprKind::real, token.text);
        e.real = std::strtod(token.text.c_str(), nullptr);
        return e;
      }
      case Token::quote:
        return make(ExprKind::text, token.text);
      case Token::name:
        return word_value(token);
      default:
        break;
    }
    if (token.text == "(") {
      Expr inner = tuple();
      expect_symbol(")");
      return inner;
    }
    if (token.text == "[") {
      Expr list = make(ExprKind::list, "");
      while (!take_symbol("]")) {
        list.children.push_back(choice());
        if (!take_symbol(",") && peek().text != "]") fail("expected ',' or ']'");
      }
      return list;
    }
    --next_;
    fail("expected a value");
  }

  Expr word_value(const Token& token) {
    if (token.text == "true" || token.text == "false") {
      Expr e = make(ExprKind::boolean, token.text);
      e.integer = token.text == "true";
      return e;
    }
    if (token.text == "none") return make(ExprKind::none, "");
    return make(ExprKind::name, token.text);
  }

  Expr number(const Token& token) {
    Expr e = make(ExprKind::integer, token.text);
    char* end = nullptr;
    errno = 0;
    e.integer = std::strtoll(token.text.c_str(), &end, 10);
    if (errno != 0 || *end != '\0') {
      --next_;
      fail("expected a number below 2^63");
    }
    return e;
  }

  const Node& scalar_;
  Diagnostics& faults_;
  std::vector<Token> tokens_;
  std::size_t next_ = 0;
  static constexpr int most_values_of_one = 1000, most_in_a_row = 200;
  int depth_ = 0;
  int values_ = 0;
  int row_ = 0;  // of signs and powers
};

bool scalar(const Node& node) {
  return node.kind != Kind::list && node.kind != Kind::map && node.kind != Kind::faulty;
}

Statement parse_block(const Node& map_node, Diagnostics& faults) {
  MapView map(map_node, "statement", faults);
  Statement s;
  s.where = map_node.where;
  const Node* condition = map.find("if");
  const Node* head = map.find("for");
  const Node* within = map.find("with");
  try {
    if (condition) {
      s.kind = StatementKind::branch;
      s.value = parse_expression(*condition, faults);
      if (const Node* body = map.require("then")) s.body = parse_statements(*body, faults);
      if (const Node* other = map.find("else")) s.otherwise = parse_statements(*other, faults);
    } else if (head) {
      s = Parser(*head, faults).loop_head();
      if (const Node* body = map.require("do")) s.body = parse_statements(*body, faults);
    } else if (within) {
      s.kind = StatementKind::within;
      s.value = parse_expression(*within, faults);
      if (const Node* body = map.require("do")) s.body = parse_statements(*body, faults);
    } else {
      faults.error(map_node.where, "expected a statement with 'if', 'for' or 'with'");
    }
  } catch (const Abandon&) {
  }
  map.finish();
  return s;
}

/// A number that is all there is, as most fields of a graph's operators are.
std::optional<Expr> lone_number(const Node& node) {
  const std::string& text = node.text;
  if (text.empty() || text.size() > 18) return {};
  for (const char c : text) {
    if (c < '0' || c > '9') return {};
  }
  std::optional<Expr> e(std::in_place);
  e->kind = ExprKind::integer;
  e->text = text;
  e->where = node.where;
  std::from_chars(text.data(), text.data() + text.size(), e->integer);
  return e;
}

}  // namespace

Expr parse_expression(const Node& node, Diagnostics& faults) {
  if (!scalar(node)) {
    if (node.kind != Kind::faulty) {
      faults.error(node.where, "expected an expression, found " + describe(node));
    }
    return {};
  }
  if (auto number = lone_number(node)) return std::move(*number);
  try {
    return Parser(node, faults).expression_only();
  } catch (const Abandon&) {
    return {};
  }
}

std::vector<Statement> parse_statements(const Node& list, Diagnostics& faults) {
  std::vector<Statement> out;
  if (list.kind != Kind::list) {
    if (list.kind != Kind::faulty) {
      faults.error(list.where, "expected a list of statements, found " + describe(list));
    }
    return out;
  }
  for (const Node& node : list.children) {
    if (node.kind == Kind::map) {
      out.push_back(parse_block(node, faults));
    } else if (scalar(node)) {
      try {
        out.push_back(Parser(node, faults).statement());
      } catch (const Abandon&) {
      }
    } else if (node.kind != Kind::faulty) {
      faults.error(node.where, "expected a statement, found " + describe(node));
    }
  }
  return out;
}

}  // namespace shardfit::spec
