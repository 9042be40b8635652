package delaymq.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.File;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Results of RocketMQ's own filter classes for SQL92 expressions. These classes belong to the broker and are not on the
 * clients' class path, so they are loaded from a folder named in the request.
 */
final class FilterOracle {
    private Method compile;
    private Object compiler;
    private Method evaluate;
    private Constructor<?> newContext;

    /** Fields: libraries, cases: [{expression, properties: [{..}, ..]}]. Returns for each case the matches, or null. */
    synchronized Object evaluate(JSONObject request) throws Exception {
        if (compile == null) {
            load(new File(request.getString("libraries")));
        }
        List<Object> answers = new ArrayList<>();
        JSONArray cases = request.getJSONArray("cases");
        for (int i = 0; i < cases.size(); i++) {
            JSONObject each = cases.getJSONObject(i);
            answers.add(answer(each.getString("expression"), each.getJSONArray("properties")));
        }
        return answers;
    }

    private Object answer(String expression, JSONArray messages) throws Exception {
        Object compiled;
        try {
            compiled = compile.invoke(compiler, expression);
        } catch (InvocationTargetException e) {
            return null;
        }
        List<Boolean> matched = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            Map<String, String> properties = new HashMap<>();
            messages.getJSONObject(i).forEach((name, value) -> properties.put(name, (String) value));
            matched.add(matches(compiled, properties));
        }
        return matched;
    }

    /** Return whether a message matches, as in the broker: an error or a non-boolean result is no match. */
    private boolean matches(Object compiled, Map<String, String> properties) throws Exception {
        try {
            return Boolean.TRUE.equals(evaluate.invoke(compiled, newContext.newInstance(properties)));
        } catch (InvocationTargetException e) {
            return false;
        }
    }

    private void load(File libraries) throws Exception {
        List<URL> jars = new ArrayList<>();
        for (File file : libraries.listFiles()) {
            jars.add(file.toURI().toURL());
        }
        // Never closed, since it is used until this program exits.
        @SuppressWarnings("resource")
        URLClassLoader loader = new URLClassLoader(jars.toArray(new URL[0]), getClass().getClassLoader());
        Class<?> filter = loader.loadClass("org.apache.rocketmq.filter.SqlFilter");
        compiler = filter.getConstructor().newInstance();
        evaluate = loader.loadClass("org.apache.rocketmq.filter.expression.Expression")
            .getMethod("evaluate", loader.loadClass("org.apache.rocketmq.filter.expression.EvaluationContext"));
        newContext = loader.loadClass("org.apache.rocketmq.broker.filter.MessageEvaluationContext")
            .getConstructor(Map.class);
        compile = filter.getMethod("compile", String.class);
    }
}
