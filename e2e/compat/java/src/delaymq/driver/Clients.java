package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;

/** Running clients, by the name given by the test. */
final class Clients {
    private record Running(Object client, Runnable stop) {}

    private final Map<String, Running> running = new ConcurrentHashMap<>();
    private final AtomicLong instances = new AtomicLong();

    /**
     * Apply the options common to all clients. Each has its own client id, so that tests never share connections,
     * unless the test chooses the id (for a consumer that returns under the same id).
     */
    void configure(ClientConfig config, JSONObject request) {
        config.setNamesrvAddr(request.getString("namesrv"));
        config.setClientIP("127.0.0.1");
        String instance = request.getString("instance");
        config.setInstanceName(instance == null ? "i" + instances.incrementAndGet() : instance);
        if (request.containsKey("pollNamesrvMs")) {
            config.setPollNameServerInterval(request.getIntValue("pollNamesrvMs"));
        }
        if (request.containsKey("heartbeatMs")) {
            config.setHeartbeatBrokerInterval(request.getIntValue("heartbeatMs"));
        }
        if (request.containsKey("persistOffsetMs")) {
            config.setPersistConsumerOffsetInterval(request.getIntValue("persistOffsetMs"));
        }
        if (request.containsKey("vipChannel")) {
            config.setVipChannelEnabled(request.getBooleanValue("vipChannel"));
        }
    }

    /** keepConnections: a request that times out (a heartbeat after 3 s) does not close the connection of others. */
    static void keepConnections(JSONObject request, MQClientInstance instance) {
        if (request.getBooleanValue("keepConnections")) {
            instance.getNettyClientConfig().setClientCloseSocketIfTimeout(false);
        }
    }

    /** Register a started client under the request's name and return its client id. */
    Object started(JSONObject request, Object client, Runnable stop, ClientConfig config) {
        String name = request.getString("client");
        if (running.putIfAbsent(name, new Running(client, stop)) != null) {
            stop.run();
            throw new IllegalArgumentException("a client " + name + " is already running");
        }
        return Map.of("clientId", config.buildMQClientId());
    }

    <T> T get(JSONObject request, Class<T> type) {
        Running entry = running.get(request.getString("client"));
        if (entry == null) {
            throw new IllegalArgumentException("no client " + request.getString("client"));
        }
        return type.cast(entry.client());
    }

    Object stop(JSONObject request) {
        Running entry = running.remove(request.getString("client"));
        if (entry != null) {
            entry.stop().run();
        }
        return entry != null;
    }
}
