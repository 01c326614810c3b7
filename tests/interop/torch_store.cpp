// SPDX-License-Identifier: Apache-2.0
// PyTorch's C++ TCPStore client: every call it has, on the server at a port. Prints one line per call, `what: answer`;
// torch_store.py runs it on our server and on PyTorch's and compares the lines.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <iostream>
#include <thread>

using c10d::PrefixStore;
using c10d::Store;
using c10d::TCPStore;
using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;

static Bytes bytes(const std::string &text)
{
    return {text.begin(), text.end()};
}

static std::string text(const Bytes &value)
{
    return "'" + std::string(value.begin(), value.end()) + "'";
}

template <typename T> static std::string text(const T &number)
{
    return std::to_string(number);
}

static std::string text(std::vector<std::string> names)
{
    std::string all = "[";

    std::sort(names.begin(), names.end());
    for (const auto &name : names)
        all += name.size() > 100 ? std::to_string(name.size()) + " bytes " : name + " ";
    return all + "]";
}

static std::string text(const std::vector<Bytes> &values)
{
    std::string all;

    for (const auto &value : values)
        all += text(value) + " ";
    return all;
}

// The answer, or the first line of the error.
template <typename F> static void say(const std::string &what, F call)
{
    std::string answer;

    try {
        if constexpr (std::is_void_v<decltype(call())>) {
            call();
            answer = "done";
        } else {
            answer = text(call());
        }
    } catch (const c10::Error &error) {
        answer = "error: " + std::string(error.what_without_backtrace());
        answer = answer.substr(0, answer.find('\n'));
        if (answer.find("timeout") == std::string::npos)
            answer = "error"; // others name ports
    }
    std::cout << what << ": " << answer << std::endl;
}

static c10::intrusive_ptr<TCPStore> dial(uint16_t port, int world_size = 0)
{
    c10d::TCPStoreOptions options;

    options.port = port;
    options.isServer = false;
    options.waitWorkers = world_size > 0;
    if (world_size > 0)
        options.numWorkers = world_size;
    options.timeout = milliseconds(5000);
    return c10::make_intrusive<TCPStore>("127.0.0.1", options);
}

// What every kind of store has. (No key is shorter than a prefix: PyTorch's PrefixStore::listKeys() ends the program then.)
static void calls(const std::string &kind, Store &store, Store &other)
{
    auto named = [&](const char *what) { return kind + " " + what; };

    say(named("set"), [&] { store.set("the a", bytes("one")); });
    say(named("set string"), [&] { store.Store::set("the s", std::string("two")); });
    say(named("get"), [&] { return store.get("the a"); });
    say(named("get_to_str"), [&] { return bytes(store.get_to_str("the s")); });
    say(named("set nothing"), [&] { store.set("the nothing", Bytes()); });
    say(named("get nothing"), [&] { return store.get("the nothing"); });
    say(named("add"), [&] { return store.add("the n", 5); });
    say(named("add less"), [&] { return store.add("the n", -7); });
    say(named("add most"), [&] { return store.add("the most", INT64_MAX); });
    say(named("add beyond"), [&] { return store.add("the most", 1); });
    say(named("check"), [&] { return store.check({"the a", "the n"}); });
    say(named("check, one missing"), [&] { return store.check({"the a", "the none"}); });
    say(named("wait"), [&] { store.wait({"the a", "the n"}); });
    say(named("wait, timeout"), [&] { store.wait({"the a", "the none"}, milliseconds(100)); });
    say(named("get after a timeout"), [&] { return store.get("the a"); });
    say(named("compareSet, absent"), [&] { return store.compareSet("the c", bytes("x"), bytes("y")); });
    say(named("compareSet, first"), [&] { return store.compareSet("the c", bytes(""), bytes("1")); });
    say(named("compareSet, wrong"), [&] { return store.compareSet("the c", bytes("0"), bytes("2")); });
    say(named("compareSet, right"), [&] { return store.compareSet("the c", bytes("1"), bytes("2")); });
    say(named("compareSet of strings"), [&] {
        return bytes(store.Store::compareSet("the c", std::string("2"), std::string("3")));
    });
    say(named("hasExtendedApi"), [&] { return store.hasExtendedApi(); });
    say(named("append"), [&] { store.append("the p", bytes("ab")); });
    say(named("append again"), [&] { store.append("the p", bytes("cd")); });
    say(named("get what was appended"), [&] { return store.get("the p"); });
    say(named("multiSet"), [&] { store.multiSet({"the m1", "the m2"}, {bytes("1"), bytes("2")}); });
    say(named("multiGet"), [&] { return store.multiGet({"the m2", "the m1", "the m2"}); });
    say(named("deleteKey"), [&] { return store.deleteKey("the m1"); });
    say(named("deleteKey again"), [&] { return store.deleteKey("the m1"); });
    say(named("queuePush"), [&] { store.queuePush("the q", bytes("i1")), store.queuePush("the q", bytes("i2")); });
    say(named("queueLen"), [&] { return store.queueLen("the q"); });
    say(named("queuePop"), [&] { return store.queuePop("the q", true); });
    say(named("queuePop again"), [&] { return store.queuePop("the q", false); });
    say(named("queuePop of none"), [&] { return store.queuePop("the q", false); });
    say(named("getNumKeys"), [&] { return store.getNumKeys(); });
    say(named("listKeys"), [&] { return store.listKeys(); });
    say(named("barrier, timeout"), [&] { store.barrier("the lonely", 2, milliseconds(100)); });
    std::thread waiter([&] { other.wait({"the late"}, milliseconds(5000)); });
    say(named("set what is waited for"), [&] { store.set("the late", bytes("1")); });
    waiter.join();
    std::thread popper([&] { (void)other.queuePop("the late queue", true); });
    say(named("push what is waited for"), [&] { store.queuePush("the late queue", bytes("1")); });
    popper.join();
    std::thread first([&] { other.barrier("the b", 2, milliseconds(5000)); });
    say(named("barrier"), [&] { store.barrier("the b", 2, milliseconds(5000)); });
    first.join();
    store.setTimeout(milliseconds(100));
    say(named("get, timeout"), [&] { return store.get("the none"); });
    say(named("getTimeout"), [&] { return store.getTimeout().count(); });
    store.setTimeout(milliseconds(5000));
}

static void threads(Store &store)
{
    std::vector<std::thread> all;
    std::vector<c10::intrusive_ptr<Store>> clones;

    for (int i = 0; i < 8; i++)
        clones.push_back(store.clone());
    for (auto &clone : clones)
        all.emplace_back([&clone, i = all.size()] {
            for (int k = 0; k < 200; k++)
                clone->add("from threads", 1);
            clone->set("of " + std::to_string(i), bytes(std::to_string(i * i)));
            clone->wait({"of 0", "of 3", "of 7"});
            clone->barrier("threads", 8, milliseconds(5000));
        });
    for (auto &thread : all)
        thread.join();
    say("threads with clones", [&] { return store.add("from threads", 0); });
    say("what they set", [&] { return store.multiGet({"of 1", "of 2", "of 7"}); });
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    auto port = static_cast<uint16_t>(std::stoi(argv[1]));
    auto store = dial(port, 3), other = dial(port, 3);

    calls("TCPStore", *store, *other);
    say("TCPStore of a world of 3", [&] { return store->add("../init/", 0); });
    auto prefix = c10::make_intrusive<PrefixStore>("p", store);
    auto nested = c10::make_intrusive<PrefixStore>("p1", c10::make_intrusive<PrefixStore>("p2", store));
    calls("PrefixStore", *prefix, *c10::make_intrusive<PrefixStore>("p", other));
    calls("nested PrefixStore", *nested,
          *c10::make_intrusive<PrefixStore>("p1", c10::make_intrusive<PrefixStore>("p2", other)));
    threads(*store);
    threads(*nested);
    say("a set in two pieces", [&] { store->_splitSet("split", Bytes(10000, 'x')); });
    say("its size", [&] { return store->get("split").size(); });
    say("a large value", [&] { store->set("large", Bytes(8 << 20, 'y')); });
    say("its size", [&] { return store->get("large").size(); });
    say("all keys", [&] { return store->listKeys(); });
    return 0;
}
